#include "core/launch/cluster/party.hpp"

#include <fmt/format.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "core/config/common_settings.hpp"

namespace accel::launch {
namespace {

/// FNV-1a. The machines compare the arguments of a program without telling them, since they may be secret.
std::uint64_t hash_of(std::string_view text) {
  std::uint64_t hash = 14695981039346656037U;
  for (const unsigned char c : text) hash = (hash ^ c) * 1099511628211U;
  return hash;
}

}  // namespace

Party party_of(const config::Config& config, const std::vector<std::string>& program,
               const std::string& version, const std::string& host) {
  const config::LaunchConfig& launch = config.launch;
  Party party{launch.machine_rank,
              launch.num_machines,
              launch.num_processes,
              launch.local_processes,
              host,
              launch.main_process_ip,
              launch.main_process_port,
              version,
              config::common_settings(config),
              launch.rendezvous_timeout_s,
              launch.min_machines,
              launch.last_call_timeout_s};
  if (program.empty()) return party;
  party.settings["the program"] =
      fmt::format("{} with {} argument{}", program[0], program.size() - 1, program.size() == 2 ? "" : "s");
  for (std::size_t i = 1; i < program.size(); ++i) party.argument_hashes.push_back(hash_of(program[i]));
  return party;
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

}  // namespace accel::launch
