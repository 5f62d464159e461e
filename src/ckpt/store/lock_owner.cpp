#include "ckpt/store/lock_owner.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.hpp"
#include "base/files/fd.hpp"
#include "base/files/json_text.hpp"
#include "base/host/file_system.hpp"
#include "base/text.hpp"

namespace accel::ckpt {
namespace {

using nlohmann::json;

constexpr std::size_t kPaddedLock = 1024;
constexpr std::size_t kLongestLock = 64 << 10;

}  // namespace

std::string to_string(const LockOwner& owner) {
  return fmt::format("{}, pid {}, since {}", owner.host, owner.pid, format_time(owner.since));
}

std::string lock_text(const LockOwner& owner) {
  std::string text = json{{"token", owner.token},   {"what", owner.what},
                          {"run_id", owner.run_id}, {"host", owner.host},
                          {"boot", owner.boot},     {"device", owner.device},
                          {"locked", owner.locked}, {"pid", owner.pid},
                          {"since", owner.since},   {"stale_after_s", owner.stale_after_s},
                          {"beats", owner.beats}}
                         .dump(-1, ' ', false, json::error_handler_t::replace);
  text.resize(std::max(text.size() + 1, kPaddedLock), ' ');
  text.back() = '\n';
  return text;
}

std::optional<LockOwner> parse_lock(const std::string& text) {
  try {
    const json document = parse_json_or_discard(text);
    if (!document.is_object()) return std::nullopt;
    LockOwner owner;
    owner.token = document.at("token").get<std::string>();
    owner.what = document.at("what").get<std::string>();
    owner.run_id = document.at("run_id").get<std::string>();
    owner.host = document.at("host").get<std::string>();
    owner.boot = document.at("boot").get<std::string>();
    owner.device = document.at("device").get<std::uint64_t>();
    owner.locked = document.at("locked").get<bool>();
    owner.pid = document.at("pid").get<std::int64_t>();
    owner.since = document.at("since").get<std::int64_t>();
    owner.stale_after_s = document.at("stale_after_s").get<double>();
    owner.beats = document.at("beats").get<std::uint64_t>();
    return owner;
  } catch (const json::exception&) {
    return std::nullopt;
  } catch (const Error&) {
    return std::nullopt;  // It nests too deeply, or has a byte order mark.
  }
}

std::optional<LockOwner> read_lock(const std::filesystem::path& file) {
  const Fd fd(::open(file.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
  if (!fd) return std::nullopt;
  // A client of NFS that has a file open for writing, as the owner and whoever wants its place do, keeps what
  // it has read of it, whatever other hosts write. A direct read asks the server.
  if (is_on_nfs(fd.get())) ::fcntl(fd.get(), F_SETFL, ::fcntl(fd.get(), F_GETFL) | O_DIRECT);
  std::string text(kLongestLock, '\0');
  const ssize_t count = ::pread(fd.get(), text.data(), text.size(), 0);
  if (count <= 0) return std::nullopt;
  text.resize(static_cast<std::size_t>(count));
  return parse_lock(text);
}

}  // namespace accel::ckpt
