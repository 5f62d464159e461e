#include "train/c10d/numeric_names.hpp"

#include <dlfcn.h>
#include <netdb.h>

#include <atomic>

namespace accel::train {
namespace {

std::atomic<int> scopes = 0;

}  // namespace

NumericNames::NumericNames() { ++scopes; }
NumericNames::~NumericNames() { --scopes; }

}  // namespace accel::train

// This definition comes before the C library's for everything in the process.
extern "C" __attribute__((visibility("default"))) int getnameinfo(const sockaddr* address, socklen_t length,
                                                                  char* host, socklen_t host_length,
                                                                  char* service, socklen_t service_length,
                                                                  int flags) {
  using Function = int (*)(const sockaddr*, socklen_t, char*, socklen_t, char*, socklen_t, int);
  static const auto next = reinterpret_cast<Function>(::dlsym(RTLD_NEXT, "getnameinfo"));
  if (next == nullptr) return EAI_SYSTEM;
  if (accel::train::scopes > 0) flags = (flags & ~NI_NAMEREQD) | NI_NUMERICHOST | NI_NUMERICSERV;
  return next(address, length, host, host_length, service, service_length, flags);
}
