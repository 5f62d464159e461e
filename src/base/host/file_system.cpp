#include "base/host/file_system.hpp"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/text.hpp"

namespace accel {
namespace {

// Magic numbers of linux/magic.h, and of the sources of Lustre, GPFS, ZFS and bcachefs.
constexpr std::array kLocal = {
    0xEF53UL /* ext */,          0x58465342UL /* xfs */, 0x9123683EUL /* btrfs */, 0x01021994UL /* tmpfs */,
    0x794C7630UL /* overlay */,  0x2FC12FC1UL /* zfs */, 0xF2F52010UL /* f2fs */,  0x858458F6UL /* ramfs */,
    0xCA451A4EUL /* bcachefs */, 0x4D44UL /* vfat */,    0x2011BAB0UL /* exfat */, 0x7366746EUL /* ntfs3 */,
};
constexpr std::array kShared = {0x00C36400UL /* ceph */, 0x47504653UL /* gpfs */, 0x7461636FUL /* ocfs2 */,
                                0x01161970UL /* gfs2 */};
constexpr unsigned long kNfs = 0x6969;
constexpr unsigned long kLustre = 0x0BD00BD0;

struct Mount {
  std::string type;
  std::string options;
};

/// The mount of a device, from a line such as
/// "36 35 0:45 / /scratch rw shared:1 - nfs4 server:/export rw,vers=4.2,local_lock=none".
Mount mount_of(dev_t device) {
  const std::string number = fmt::format("{}:{}", major(device), minor(device));
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string word;
    for (int field = 0; field < 3; ++field) words >> word;
    if (word != number) continue;
    while (words >> word && word != "-") {
    }
    Mount mount;
    std::string source;
    words >> mount.type >> source >> mount.options;
    return mount;
  }
  return {};
}

}  // namespace

LockReach lock_reach(unsigned long magic, const std::string& options) {
  const auto is_in = [magic](const auto& list) {
    return std::find(list.begin(), list.end(), magic) != list.end();
  };
  if (is_in(kLocal)) return LockReach::kOneHost;
  if (is_in(kShared)) return LockReach::kAllHosts;
  const std::vector<std::string> set = split(options, ',');
  const auto has = [&set](const char* option) {
    return std::find(set.begin(), set.end(), option) != set.end();
  };
  if (magic == kNfs && !has("nolock") && !has("local_lock=all") && !has("local_lock=posix"))
    return LockReach::kAllHosts;
  if (magic == kLustre && has("flock")) return LockReach::kAllHosts;
  return LockReach::kUnknown;
}

FileSystem file_system_of(const std::filesystem::path& path) {
  struct statfs system {};
  struct stat status {};
  if (::statfs(path.c_str(), &system) != 0 || ::stat(path.c_str(), &status) != 0) return {"unknown"};
  const Mount mount = mount_of(status.st_dev);
  const auto magic = static_cast<unsigned long>(system.f_type);
  return {mount.type.empty() ? fmt::format("{:#x}", magic) : mount.type, lock_reach(magic, mount.options)};
}

std::optional<std::uint64_t> free_bytes(const std::filesystem::path& path) {
  struct statvfs system {};
  if (::statvfs(path.c_str(), &system) != 0 || system.f_blocks == 0) return std::nullopt;
  return std::uint64_t{system.f_bavail} * system.f_frsize;
}

bool is_on_nfs(int fd) {
  struct statfs system {};
  return ::fstatfs(fd, &system) == 0 && static_cast<unsigned long>(system.f_type) == kNfs;
}

}  // namespace accel
