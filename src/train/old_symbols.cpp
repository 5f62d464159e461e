// The worker of the wheel uses no symbol that is newer than the libstdc++ of GCC 11, which RHEL 9 has. The
// linker's option
// --wrap in meson.build sends every call of the function below here.
#include <condition_variable>
#include <mutex>

extern "C" {

// GCC 12 gave std::condition_variable::wait a new symbol version when it lost its `noexcept`. The older one
// is still there.
__asm__(
    ".symver accel_condition_variable_wait, "
    "_ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE@GLIBCXX_3.4.11");
void accel_condition_variable_wait(std::condition_variable* self, std::unique_lock<std::mutex>& lock);

void __wrap__ZNSt18condition_variable4waitERSt11unique_lockISt5mutexE(std::condition_variable* self,
                                                                      std::unique_lock<std::mutex>& lock) {
  accel_condition_variable_wait(self, lock);
}

}  // extern "C"
