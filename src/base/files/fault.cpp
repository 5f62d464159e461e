#include "base/files/fault.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "base/error.hpp"
#include "base/files/fault_point.hpp"
#include "base/text.hpp"

namespace accel::fault {
namespace {

constexpr std::array<std::string_view, 16> kOperations = {
    "create",     "write",    "copy", "reserve", "truncate", "sync",  "sync-dir", "rename",
    "rename-new", "exchange", "link", "symlink", "unlink",   "mkdir", "rmdir",    "chmod"};

constexpr std::array<std::pair<std::string_view, int>, 14> kErrors = {{
    {"EACCES", EACCES},
    {"EDQUOT", EDQUOT},
    {"EEXIST", EEXIST},
    {"EINTR", EINTR},
    {"EINVAL", EINVAL},
    {"EIO", EIO},
    {"EMFILE", EMFILE},
    {"ENOENT", ENOENT},
    {"ENOSPC", ENOSPC},
    {"ENOSYS", ENOSYS},
    {"EOPNOTSUPP", EOPNOTSUPP},
    {"EPERM", EPERM},
    {"EROFS", EROFS},
    {"EXDEV", EXDEV},
}};

enum class Mode { kCount, kKill, kKillAfter, kTorn, kStop, kFail, kFull };

constexpr std::array<std::pair<std::string_view, Mode>, 6> kModes = {{
    {"kill", Mode::kKill},
    {"killafter", Mode::kKillAfter},
    {"torn", Mode::kTorn},
    {"stop", Mode::kStop},
    {"fail", Mode::kFail},
    {"full", Mode::kFull},
}};

struct Fault {
  Mode mode = Mode::kCount;
  std::uint64_t number = 0;  // The number of the call; 0 stands for every call.
  Operation operation = Operation::kCreate;
  int error = EIO;
};

bool takes_space(Operation operation) {
  switch (operation) {
    case Operation::kCreate:
    case Operation::kWrite:
    case Operation::kCopy:
    case Operation::kReserve:
    case Operation::kLink:
    case Operation::kSymlink:
    case Operation::kMakeDirectory:
      return true;
    default:
      return false;
  }
}

bool is_write(Operation operation) { return operation == Operation::kWrite || operation == Operation::kCopy; }

[[noreturn]] void refuse(std::string_view part) {
  throw Error(ErrorKind::kUsage, fmt::format("'{}' is not a plan of faults", part))
      .hint(
          "such as count, kill@17, killafter@17, torn@17, stop@17, full@17, fail@17:ENOSPC or "
          "fail@rename:EIO");
}

template <class Table>
auto find(const Table& table, std::string_view name, std::string_view part) {
  for (const auto& [known, value] : table) {
    if (known == name) return value;
  }
  refuse(part);
}

Fault parse_fault(std::string_view part) {
  Fault fault;
  if (part == "count") return fault;
  const std::size_t at = part.find('@');
  if (at == std::string_view::npos) refuse(part);
  fault.mode = find(kModes, part.substr(0, at), part);
  std::string_view where = part.substr(at + 1);
  if (const std::size_t colon = where.find(':'); colon != std::string_view::npos) {
    if (fault.mode != Mode::kFail) refuse(part);
    fault.error = find(kErrors, where.substr(colon + 1), part);
    where = where.substr(0, colon);
  }
  const auto [end, error] = std::from_chars(where.data(), where.data() + where.size(), fault.number);
  if (error == std::errc() && end == where.data() + where.size() && fault.number > 0) return fault;
  const auto operation = std::find(kOperations.begin(), kOperations.end(), where);
  if (operation == kOperations.end() || fault.mode != Mode::kFail) refuse(part);
  fault.number = 0;
  fault.operation = static_cast<Operation>(operation - kOperations.begin());
  return fault;
}

// What is in force: who may change it is said at Scope.
class Plan {
 public:
  explicit Plan(std::string_view text) {
    for (const std::string& part : split(text, ',')) faults_.push_back(parse_fault(trim(part)));
    active_ = !faults_.empty();
  }

  static Plan from_environment() {
    const char* text = std::getenv("ACCEL_FAULT");
    const char* log = std::getenv("ACCEL_FAULT_LOG");
    Plan plan(text == nullptr ? "" : text);
    if (log != nullptr && *log != '\0') {
      plan.log_fd_ = ::open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
      if (plan.log_fd_ < 0) throw system_error("open", log, errno);
      plan.active_ = true;
    } else if (std::string_view(text == nullptr ? "" : text) == "count") {
      plan.log_fd_ = STDERR_FILENO;
    }
    return plan;
  }

  [[nodiscard]] bool active() const { return active_; }
  [[nodiscard]] std::vector<std::string> points() const {
    const std::lock_guard lock(*mutex_);
    return points_;
  }
  void keep_points() { keep_points_ = true; }

  detail::Verdict consider(Operation operation, const std::filesystem::path& path) {
    const std::lock_guard lock(*mutex_);
    const std::uint64_t number = ++count_;
    note(number, fmt::format("{} {}", name_of(operation), path.string()));
    for (const Fault& fault : faults_) {
      if (const auto verdict = apply(fault, number, operation)) return *verdict;
    }
    return {};
  }

 private:
  static std::optional<detail::Verdict> apply(const Fault& fault, std::uint64_t number, Operation operation) {
    if (fault.mode == Mode::kFull) {
      if (number < fault.number || !takes_space(operation)) return std::nullopt;
      return detail::Verdict{.error = ENOSPC};
    }
    if (fault.mode == Mode::kCount || (fault.number > 0 && fault.number != number)) return std::nullopt;
    if (fault.number == 0 && fault.operation != operation) return std::nullopt;
    if (fault.mode == Mode::kStop) {
      ::kill(::getpid(), SIGSTOP);
      return std::nullopt;
    }
    if (fault.mode == Mode::kFail) return detail::Verdict{.error = fault.error};
    if (fault.mode == Mode::kKillAfter) return detail::Verdict{.kill_after = true};
    if (fault.mode == Mode::kTorn && is_write(operation)) return detail::Verdict{.half = true};
    detail::die();
  }

  void note(std::uint64_t number, std::string text) {
    if (log_fd_ >= 0) {
      const std::string line = fmt::format("{} {}\n", number, text);
      [[maybe_unused]] const ssize_t written = ::write(log_fd_, line.data(), line.size());
    }
    if (keep_points_) points_.push_back(std::move(text));
  }

  std::unique_ptr<std::mutex> mutex_ = std::make_unique<std::mutex>();
  std::vector<Fault> faults_;
  bool active_ = false;
  bool keep_points_ = false;
  int log_fd_ = -1;
  std::uint64_t count_ = 0;
  std::vector<std::string> points_;
};

Plan& environment_plan() {
  static Plan plan = Plan::from_environment();
  return plan;
}

std::optional<Plan>& scoped_plan() {
  static std::optional<Plan> plan;
  return plan;
}

}  // namespace

bool is_built_in() { return kBuiltIn; }

const char* device_module() {
  const char* const path = kBuiltIn ? std::getenv("ACCEL_DEVICE_MODULE") : nullptr;
  return path == nullptr || *path == '\0' ? nullptr : path;
}

std::string_view name_of(Operation operation) { return kOperations[static_cast<std::size_t>(operation)]; }

Scope::Scope(std::string_view plan) {
  scoped_plan().emplace(plan);
  scoped_plan()->keep_points();
  detail::may_be_active = true;
}

Scope::~Scope() {
  scoped_plan().reset();
  detail::may_be_active = true;  // The next call looks at the environment again.
}

std::vector<std::string> Scope::points() const { return scoped_plan()->points(); }

namespace detail {

Verdict consider(Operation operation, const std::filesystem::path& path) {
  if (scoped_plan()) return scoped_plan()->consider(operation, path);
  Plan& plan = environment_plan();
  if (plan.active()) return plan.consider(operation, path);
  may_be_active = false;
  return {};
}

void die() {
  ::kill(::getpid(), SIGKILL);
  while (true) ::pause();
}

}  // namespace detail
}  // namespace accel::fault
