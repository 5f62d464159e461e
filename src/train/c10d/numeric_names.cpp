// libtorch puts the host name of every socket of its TCPStore into messages that nobody sees. For each rank
// that connects, it asks DNS for that name while all the others wait, and for seconds where no server
// answers. With this definition addresses stay numbers: it comes before the C library's for everything in the
// process.

#include <dlfcn.h>
#include <netdb.h>

extern "C" __attribute__((visibility("default"))) int getnameinfo(const sockaddr* address, socklen_t length,
                                                                  char* host, socklen_t host_length,
                                                                  char* service, socklen_t service_length,
                                                                  int flags) {
  using Function = int (*)(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int);
  static const auto next = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "getnameinfo"));
  if (next == nullptr) return EAI_SYSTEM;
  const int numeric = (flags & ~NI_NAMEREQD) | NI_NUMERICHOST | NI_NUMERICSERV;
  return next(address, length, host, host_length, service, service_length, numeric);
}
