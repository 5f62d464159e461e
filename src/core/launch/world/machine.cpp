#include "core/launch/world/machine.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <set>

#include "base/error.hpp"
#include "base/files/fd.hpp"
#include "base/host/cpus.hpp"
#include "base/text.hpp"

namespace accel::launch {
namespace {

int named_devices(const std::string& list) {
  int count = 0;
  for (const std::string& device : split(list, ',')) {
    // CUDA stops at the first entry that is not a device.
    const std::string_view name = trim(device);
    if (name.empty() || name.starts_with('-') || name == "NoDevFiles" || name == "none") break;
    ++count;
  }
  return count;
}

bool is_device_file(const std::string& name) {
  static constexpr std::string_view kPrefix = "nvidia";
  return name.size() > kPrefix.size() && name.starts_with(kPrefix) &&
         name.find_first_not_of("0123456789", kPrefix.size()) == std::string::npos;
}

/// A socket bound to `port` (0: any) of every address, or none.
Fd bound_socket(int port) {
  Fd fd(::socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  const int off = 0;
  if (fd) {
    // The socket binds as the store of c10d does: both families, and despite connections in TIME_WAIT.
    ::setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    sockaddr_in6 address{};
    address.sin6_family = AF_INET6;
    address.sin6_addr = in6addr_any;
    address.sin6_port = htons(static_cast<std::uint16_t>(port));
    if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) == 0) return fd;
    if (errno == EADDRINUSE) return Fd();
  }
  // The machine has no IPv6.
  fd = Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  if (::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address) != 0) return Fd();
  return fd;
}

}  // namespace

int visible_gpus(const Environment& environment, const std::filesystem::path& root) {
  int present = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(root / "proc/driver/nvidia/gpus", error)) {
    present += entry.is_directory() ? 1 : 0;
  }
  if (present == 0) {
    // A container may have the device files without the driver's part of /proc.
    for (const auto& entry : std::filesystem::directory_iterator(root / "dev", error)) {
      present += is_device_file(entry.path().filename().string()) ? 1 : 0;
    }
  }
  const auto named = environment("CUDA_VISIBLE_DEVICES");
  return named ? std::min(present, named_devices(*named)) : present;
}

int physical_cores(const std::filesystem::path& root) {
  std::set<std::string> cores;
  for (const int cpu : allowed_cpus()) {
    // Hyperthreads of one core list the same siblings.
    std::ifstream file(root / fmt::format("sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu));
    std::string siblings;
    if (!std::getline(file, siblings)) siblings = fmt::format("cpu{}", cpu);
    cores.insert(siblings);
  }
  const int usable = static_cast<int>(usable_cpus(root));
  return std::max(1, std::min(static_cast<int>(cores.size()), usable));
}

Fd listening_socket(int port) {
  Fd fd = bound_socket(port);
  if (!fd || ::listen(fd.get(), SOMAXCONN) != 0) return Fd();
  ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_NONBLOCK);
  return fd;
}

bool port_is_free(int port) {
  // Listening is what makes two sockets collide under SO_REUSEADDR.
  const Fd fd = bound_socket(port);
  return fd && ::listen(fd.get(), 1) == 0;
}

int free_port() {
  const Fd fd = bound_socket(0);
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  if (!fd || ::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    throw system_error("find", "a free port", errno);
  }
  return address.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6&>(address).sin6_port)
                                       : ntohs(reinterpret_cast<const sockaddr_in&>(address).sin_port);
}

}  // namespace accel::launch
