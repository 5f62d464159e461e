#include "core/launch/world/address.hpp"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <thread>

#include "base/error.hpp"
#include "base/host/threads.hpp"

namespace accel::launch {
namespace {

Fd stream_socket(int family) { return Fd(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

/// Connects to the address while a socket of this process listens on all interfaces. Returns 0 if the
/// connection arrives there, else an error number.
int try_to_reach(Address address) {
  const sa_family_t family = address.storage.ss_family;
  if (family != AF_INET && family != AF_INET6) return EAFNOSUPPORT;
  const Fd listener = stream_socket(family);
  if (!listener) return errno;
  Address any = any_address(family);
  if (::bind(listener.get(), reinterpret_cast<sockaddr*>(&any.storage), any.size) != 0 ||
      ::listen(listener.get(), 1) != 0 ||
      ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&any.storage), &any.size) != 0)
    return errno;
  port_of(address) = port_of(any);
  const auto [caller, error] = connect_to(address);
  if (!caller) return error;
  // Another machine may answer.
  const Fd arrived(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  return arrived ? 0 : EHOSTUNREACH;
}

}  // namespace

Address any_address(sa_family_t family) {
  // INADDR_ANY and in6addr_any are zeros.
  Address any;
  any.storage.ss_family = family;
  any.size = family == AF_INET6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
  return any;
}

in_port_t& port_of(Address& address) {
  return address.storage.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port
                                               : reinterpret_cast<sockaddr_in&>(address.storage).sin_port;
}

std::pair<Fd, int> connect_to(const Address& address) {
  Fd socket = stream_socket(address.storage.ss_family);
  if (!socket) return {Fd(), errno};
  if (::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) != 0 &&
      errno != EINPROGRESS)
    return {Fd(), errno};
  pollfd connected{socket.get(), POLLOUT, 0};
  constexpr int kConnectMs = 3000;
  if (::poll(&connected, 1, kConnectMs) != 1) return {Fd(), ETIMEDOUT};
  int error = 0;
  socklen_t size = sizeof error;
  ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size);
  return {error == 0 ? std::move(socket) : Fd(), error};
}

bool is_loopback(const Address& address) {
  if (address.storage.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address.storage);
    return (ntohl(v4.sin_addr.s_addr) >> IN_CLASSA_NSHIFT) == IN_LOOPBACKNET;
  }
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address.storage);
  return address.storage.ss_family == AF_INET6 && IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
}

bool is_numeric(const std::string& host) {
  in6_addr address{};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1 ||
         ::inet_pton(AF_INET6, host.c_str(), &address) == 1;
}

std::string interface_of(const std::string& address) {
  ifaddrs* first = nullptr;
  if (::getifaddrs(&first) != 0) return "";
  const std::unique_ptr<ifaddrs, decltype(&::freeifaddrs)> freed(first, &::freeifaddrs);
  for (const ifaddrs* entry = first; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr) continue;
    const int family = entry->ifa_addr->sa_family;
    if (family != AF_INET && family != AF_INET6) continue;
    std::array<char, NI_MAXHOST> text{};
    const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
    if (::getnameinfo(entry->ifa_addr, size, text.data(), text.size(), nullptr, 0, NI_NUMERICHOST) == 0 &&
        address == text.data())
      return entry->ifa_name;
  }
  return "";
}

std::vector<Address> look_up_within(std::chrono::milliseconds limit, const Lookup& lookup,
                                    const std::string& host) {
  // Nothing can end a thread that waits for a name server. The next call waits for the same one.
  static std::mutex mutex;
  static std::map<std::string, std::shared_future<std::vector<Address>>> pending;
  std::unique_lock lock(mutex);
  std::shared_future<std::vector<Address>>& known = pending[host];
  if (!known.valid()) {
    std::packaged_task<std::vector<Address>()> task([lookup, host] { return lookup(host); });
    known = task.get_future().share();
    thread_without_signals([task = std::make_shared<decltype(task)>(std::move(task))] {
      (*task)();
    }).detach();
  }
  const std::shared_future<std::vector<Address>> result = known;
  lock.unlock();
  const bool is_ready = result.wait_for(limit) == std::future_status::ready;
  lock.lock();
  if (is_ready) pending.erase(host);
  lock.unlock();
  if (!is_ready) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is not resolved within {} s", host,
                            std::chrono::duration_cast<std::chrono::duration<double>>(limit).count()));
  }
  return result.get();
}

std::vector<Address> look_up(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int status = ::getaddrinfo(host.c_str(), nullptr, &hints, &found);
  if (status != 0) {
    const char* reason = status == EAI_SYSTEM ? std::strerror(errno) : ::gai_strerror(status);
    throw Error(ErrorKind::kUsage, fmt::format("'{}' cannot be resolved: {}", host, reason));
  }
  const std::unique_ptr<addrinfo, decltype(&::freeaddrinfo)> freed(found, &::freeaddrinfo);
  std::vector<Address> addresses;
  for (const addrinfo* entry = found; entry != nullptr; entry = entry->ai_next) {
    Address address;
    address.size = entry->ai_addrlen;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    addresses.push_back(address);
  }
  return addresses;
}

void check_own_address(const std::string& host, std::chrono::milliseconds limit, const Lookup& lookup) {
  const std::vector<Address> addresses = look_up_within(limit, lookup, host);
  int reason = EADDRNOTAVAIL;
  for (const Address& address : addresses) {
    reason = try_to_reach(address);
    if (reason == 0) return;
  }
  throw Error(ErrorKind::kUsage, fmt::format("'{}' does not lead to this machine, on which rank 0 runs: {}",
                                             host, std::strerror(reason)));
}

}  // namespace accel::launch
