#include "core/launch/address.hpp"

#include <fmt/format.h>
#include <netdb.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <future>
#include <memory>
#include <thread>
#include <utility>

#include "base/error.hpp"
#include "base/fd.hpp"

namespace accel::core {
namespace {

/// `lookup(host)`, on a thread of its own, which is left to itself when the time is over: nothing ends
/// getaddrinfo early.
std::vector<Address> look_up_within(std::chrono::milliseconds limit, const Lookup& lookup,
                                    const std::string& host) {
  std::packaged_task<std::vector<Address>()> task([lookup, host] { return lookup(host); });
  std::future<std::vector<Address>> result = task.get_future();
  std::thread(std::move(task)).detach();
  if (result.wait_for(limit) != std::future_status::ready) {
    throw Error(ErrorKind::kUsage,
                fmt::format("'{}' is not resolved within {} s", host,
                            std::chrono::duration_cast<std::chrono::duration<double>>(limit).count()));
  }
  return result.get();
}

bool is_own(const Address& address) {
  const Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  // The port of the address is 0: any that is free.
  return fd && ::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address.storage), address.size) == 0;
}

}  // namespace

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
  if (std::any_of(addresses.begin(), addresses.end(), is_own)) return;
  throw Error(ErrorKind::kUsage,
              fmt::format("'{}' is not an address of this machine, on which rank 0 runs", host));
}

}  // namespace accel::core
