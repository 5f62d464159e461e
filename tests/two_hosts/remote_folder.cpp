// remote-folder FOLDER MOUNTPOINT OPTION...: shows FOLDER at MOUNTPOINT as one client of an NFS server sees
// it. Two such mounts of one folder are two hosts. Options: cache=SECONDS, for which names and attributes are
// believed; local_locks, for file locks that other hosts do not see. Commands of conditions.hpp come on
// stdin, one a line, and each is answered by a line. The end of stdin ends the mount, so none outlives its
// test.

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define FUSE_USE_VERSION 312
#include <fuse_lowlevel.h>

#include <cerrno>
#include <cstdlib>
#include <iostream>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "conditions.hpp"
#include "locks.hpp"

namespace {

/// A file or folder that the kernel knows, which is pinned by a descriptor opened with O_PATH.
struct Node {
  Node() = default;
  Node(const Node&) = delete;
  Node& operator=(const Node&) = delete;
  ~Node() { ::close(fd); }

  int fd = -1;
  std::pair<dev_t, ino_t> key;
  uint64_t lookups = 0;
  std::string name;  // The last one it was found by.
  // An NFS client renames an open file that its host removes. One that another host has removed is stale.
  bool removed_here = false;
  Locks locks;

  /// A path that opens the file itself, whatever its name is now.
  [[nodiscard]] std::string path() const { return "/proc/self/fd/" + std::to_string(fd); }
};

double cache_s = 3;
Conditions conditions;
std::mutex nodes_mutex;
std::map<std::pair<dev_t, ino_t>, std::unique_ptr<Node>> nodes;
Node root;

Node& node_of(fuse_ino_t ino) { return ino == FUSE_ROOT_ID ? root : *reinterpret_cast<Node*>(ino); }

/// Waits while the operation is stalled. Replies and returns true if it has to fail. `name` is that of the
/// file in `node`, if the operation names one.
bool fails(fuse_req_t request, const char* operation, const Node& node, const char* name = nullptr) {
  int error = conditions.error_of(operation, name != nullptr ? name : node.name);
  struct stat now {};
  if (error == 0 && ::fstat(node.fd, &now) != 0) error = errno;
  if (error == 0 && now.st_nlink == 0 && !node.removed_here) error = ESTALE;
  if (error != 0) fuse_reply_err(request, error);
  return error != 0;
}

/// Replies with the errno of a system call if `result` says that it failed, otherwise that all went well.
void reply_result(fuse_req_t request, int result) { fuse_reply_err(request, result == 0 ? 0 : errno); }

/// Finds `name` and counts that the kernel knows it. Returns 0 or an errno.
int find(Node& parent, const char* name, fuse_entry_param& entry) {
  entry = {};
  entry.attr_timeout = entry.entry_timeout = cache_s;
  const int fd = ::openat(parent.fd, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
  if (fd < 0) return errno;
  auto fresh = std::make_unique<Node>();
  fresh->fd = fd;
  if (::fstat(fd, &entry.attr) != 0) return errno;
  const std::lock_guard guard(nodes_mutex);
  auto& node = nodes[{entry.attr.st_dev, entry.attr.st_ino}];
  if (node == nullptr) node = std::move(fresh);
  node->key = {entry.attr.st_dev, entry.attr.st_ino};
  node->name = name;
  ++node->lookups;
  entry.ino = reinterpret_cast<fuse_ino_t>(node.get());
  return 0;
}

/// Replies with the new entry `name`, or the errno of the system call that was to make it.
void reply_made(fuse_req_t request, int result, Node& parent, const char* name) {
  fuse_entry_param entry{};
  if (const int error = result != 0 ? errno : find(parent, name, entry); error != 0) {
    fuse_reply_err(request, error);
  } else {
    fuse_reply_entry(request, &entry);
  }
}

void on_init(void* /*data*/, fuse_conn_info* connection) {
  connection->want &= ~static_cast<unsigned>(FUSE_CAP_READDIRPLUS | FUSE_CAP_READDIRPLUS_AUTO);
}

void on_lookup(fuse_req_t request, fuse_ino_t parent, const char* name) {
  if (fails(request, "lookup", node_of(parent), name)) return;
  fuse_entry_param entry{};
  const int error = find(node_of(parent), name, entry);
  // Without an inode: that the name is missing is believed as long as the rest.
  if (error == 0 || error == ENOENT) {
    fuse_reply_entry(request, &entry);
  } else {
    fuse_reply_err(request, error);
  }
}

void on_forget(fuse_req_t request, fuse_ino_t ino, uint64_t count) {
  if (ino != FUSE_ROOT_ID) {
    const std::lock_guard guard(nodes_mutex);
    Node& node = node_of(ino);
    node.lookups -= count;
    // Not erase(node.key), which would read the key while the node goes.
    if (node.lookups == 0) nodes.erase(nodes.find(node.key));
  }
  fuse_reply_none(request);
}

void reply_attributes(fuse_req_t request, const Node& node) {
  struct stat now {};
  if (::fstat(node.fd, &now) != 0) {
    fuse_reply_err(request, errno);
  } else {
    fuse_reply_attr(request, &now, cache_s);
  }
}

void on_getattr(fuse_req_t request, fuse_ino_t ino, fuse_file_info* /*info*/) {
  if (!fails(request, "getattr", node_of(ino))) reply_attributes(request, node_of(ino));
}

int set_attributes(const Node& node, const struct stat& wanted, int which) {
  const std::string path = node.path();
  if ((which & FUSE_SET_ATTR_MODE) != 0 && ::chmod(path.c_str(), wanted.st_mode) != 0) return errno;
  if ((which & (FUSE_SET_ATTR_UID | FUSE_SET_ATTR_GID)) != 0) {
    const uid_t user = (which & FUSE_SET_ATTR_UID) != 0 ? wanted.st_uid : static_cast<uid_t>(-1);
    const gid_t group = (which & FUSE_SET_ATTR_GID) != 0 ? wanted.st_gid : static_cast<gid_t>(-1);
    if (::fchownat(node.fd, "", user, group, AT_EMPTY_PATH) != 0) return errno;
  }
  if ((which & FUSE_SET_ATTR_SIZE) != 0 && ::truncate(path.c_str(), wanted.st_size) != 0) return errno;
  const auto time_of = [which](const timespec& time, int given, int now) {
    return (which & now) != 0     ? timespec{0, UTIME_NOW}
           : (which & given) != 0 ? time
                                  : timespec{0, UTIME_OMIT};
  };
  const timespec times[2] = {time_of(wanted.st_atim, FUSE_SET_ATTR_ATIME, FUSE_SET_ATTR_ATIME_NOW),
                             time_of(wanted.st_mtim, FUSE_SET_ATTR_MTIME, FUSE_SET_ATTR_MTIME_NOW)};
  return ::utimensat(AT_FDCWD, path.c_str(), times, 0) == 0 ? 0 : errno;
}

void on_setattr(fuse_req_t request, fuse_ino_t ino, struct stat* wanted, int which,
                fuse_file_info* /*info*/) {
  if (fails(request, "setattr", node_of(ino))) return;
  if (const int error = set_attributes(node_of(ino), *wanted, which); error != 0) {
    fuse_reply_err(request, error);
  } else {
    reply_attributes(request, node_of(ino));
  }
}

void on_readlink(fuse_req_t request, fuse_ino_t ino) {
  char target[PATH_MAX + 1] = {};
  if (::readlinkat(node_of(ino).fd, "", target, PATH_MAX) < 0) {
    fuse_reply_err(request, errno);
  } else {
    fuse_reply_readlink(request, target);
  }
}

void on_mkdir(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode) {
  if (fails(request, "mkdir", node_of(parent), name)) return;
  reply_made(request, ::mkdirat(node_of(parent).fd, name, mode), node_of(parent), name);
}

void on_symlink(fuse_req_t request, const char* target, fuse_ino_t parent, const char* name) {
  if (fails(request, "symlink", node_of(parent), name)) return;
  reply_made(request, ::symlinkat(target, node_of(parent).fd, name), node_of(parent), name);
}

void on_link(fuse_req_t request, fuse_ino_t ino, fuse_ino_t parent, const char* name) {
  if (fails(request, "link", node_of(parent), name)) return;
  const std::string path = node_of(ino).path();
  const int result = ::linkat(AT_FDCWD, path.c_str(), node_of(parent).fd, name, AT_SYMLINK_FOLLOW);
  reply_made(request, result, node_of(parent), name);
}

/// Notes that this host itself takes the name away from a file.
void note_removal(const Node& parent, const char* name) {
  struct stat now {};
  if (::fstatat(parent.fd, name, &now, AT_SYMLINK_NOFOLLOW) != 0) return;
  const std::lock_guard guard(nodes_mutex);
  if (const auto node = nodes.find({now.st_dev, now.st_ino}); node != nodes.end())
    node->second->removed_here = true;
}

void remove(fuse_req_t request, const char* operation, fuse_ino_t parent, const char* name, int flags) {
  if (fails(request, operation, node_of(parent), name)) return;
  note_removal(node_of(parent), name);
  reply_result(request, ::unlinkat(node_of(parent).fd, name, flags));
}

void on_unlink(fuse_req_t request, fuse_ino_t parent, const char* name) {
  remove(request, "unlink", parent, name, 0);
}

void on_rmdir(fuse_req_t request, fuse_ino_t parent, const char* name) {
  remove(request, "rmdir", parent, name, AT_REMOVEDIR);
}

void on_rename(fuse_req_t request, fuse_ino_t from, const char* name, fuse_ino_t into, const char* as,
               unsigned flags) {
  // NFS has neither RENAME_NOREPLACE nor RENAME_EXCHANGE.
  if (flags != 0) {
    fuse_reply_err(request, EINVAL);
    return;
  }
  if (fails(request, "rename", node_of(from), name)) return;
  note_removal(node_of(into), as);
  reply_result(request, ::renameat(node_of(from).fd, name, node_of(into).fd, as));
}

/// The flags to open a file with for the flags that the process gave. The kernel says where an append goes,
/// by the size that it knows, as an NFS client does.
int flags_of(const fuse_file_info& info) {
  return (info.flags & ~(O_APPEND | O_NOFOLLOW | O_DIRECT)) | O_CLOEXEC;
}

void on_open(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info) {
  if (fails(request, "open", node_of(ino))) return;
  const int fd = ::open(node_of(ino).path().c_str(), flags_of(*info));
  if (fd < 0) {
    fuse_reply_err(request, errno);
    return;
  }
  info->fh = static_cast<uint64_t>(fd);
  if (fuse_reply_open(request, info) != 0) ::close(fd);
}

void on_create(fuse_req_t request, fuse_ino_t parent, const char* name, mode_t mode, fuse_file_info* info) {
  if (fails(request, "create", node_of(parent), name)) return;
  const int fd = ::openat(node_of(parent).fd, name, flags_of(*info) | O_CREAT, mode);
  fuse_entry_param entry{};
  if (const int error = fd < 0 ? errno : find(node_of(parent), name, entry); error != 0) {
    if (fd >= 0) ::close(fd);
    fuse_reply_err(request, error);
    return;
  }
  info->fh = static_cast<uint64_t>(fd);
  if (fuse_reply_create(request, &entry, info) != 0) ::close(fd);
}

void on_read(fuse_req_t request, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* info) {
  if (fails(request, "read", node_of(ino))) return;
  std::vector<char> bytes(size);
  const ssize_t got = ::pread(static_cast<int>(info->fh), bytes.data(), size, offset);
  if (got < 0) {
    fuse_reply_err(request, errno);
  } else {
    fuse_reply_buf(request, bytes.data(), static_cast<size_t>(got));
  }
}

void on_write(fuse_req_t request, fuse_ino_t ino, const char* bytes, size_t size, off_t offset,
              fuse_file_info* info) {
  if (fails(request, "write", node_of(ino))) return;
  const ssize_t put = ::pwrite(static_cast<int>(info->fh), bytes, size, offset);
  if (put < 0) {
    fuse_reply_err(request, errno);
  } else {
    fuse_reply_write(request, static_cast<size_t>(put));
  }
}

void on_flush(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info) {
  node_of(ino).locks.closed(info->lock_owner);
  // A file can be closed though it is stale.
  fuse_reply_err(request, conditions.error_of("flush", node_of(ino).name));
}

void on_release(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info) {
  node_of(ino).locks.released(info->fh);
  ::close(static_cast<int>(info->fh));
  fuse_reply_err(request, 0);
}

void on_fsync(fuse_req_t request, fuse_ino_t ino, int only_data, fuse_file_info* info) {
  if (fails(request, "fsync", node_of(ino))) return;
  const int fd = static_cast<int>(info->fh);
  reply_result(request, only_data != 0 ? ::fdatasync(fd) : ::fsync(fd));
}

DIR* folder_of(const fuse_file_info& info) { return reinterpret_cast<DIR*>(info.fh); }

void on_opendir(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info) {
  if (fails(request, "opendir", node_of(ino))) return;
  DIR* folder = ::opendir(node_of(ino).path().c_str());
  if (folder == nullptr) {
    fuse_reply_err(request, errno);
    return;
  }
  info->fh = reinterpret_cast<uint64_t>(folder);
  if (fuse_reply_open(request, info) != 0) ::closedir(folder);
}

void on_readdir(fuse_req_t request, fuse_ino_t ino, size_t size, off_t offset, fuse_file_info* info) {
  if (fails(request, "readdir", node_of(ino))) return;
  DIR* folder = folder_of(*info);
  if (offset == 0) {
    ::rewinddir(folder);
  } else {
    ::seekdir(folder, offset);
  }
  std::vector<char> bytes(size);
  size_t used = 0;
  while (const dirent* entry = ::readdir(folder)) {
    struct stat kind {};
    kind.st_ino = entry->d_ino;
    kind.st_mode = static_cast<mode_t>(DTTOIF(entry->d_type));
    const size_t length =
        fuse_add_direntry(request, bytes.data() + used, size - used, entry->d_name, &kind, ::telldir(folder));
    if (length > size - used) break;
    used += length;
  }
  fuse_reply_buf(request, bytes.data(), used);
}

void on_releasedir(fuse_req_t request, fuse_ino_t /*ino*/, fuse_file_info* info) {
  ::closedir(folder_of(*info));
  fuse_reply_err(request, 0);
}

void on_fsyncdir(fuse_req_t request, fuse_ino_t ino, int /*only_data*/, fuse_file_info* info) {
  if (!fails(request, "fsyncdir", node_of(ino))) reply_result(request, ::fsync(::dirfd(folder_of(*info))));
}

void on_statfs(fuse_req_t request, fuse_ino_t ino) {
  struct statvfs state {};
  if (::fstatvfs(node_of(ino).fd, &state) != 0) {
    fuse_reply_err(request, errno);
  } else {
    fuse_reply_statfs(request, &state);
  }
}

void on_getlk(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info, struct flock* lock) {
  Node& node = node_of(ino);
  if (fails(request, "lock", node)) return;
  const int error = node.locks.find(info->lock_owner, node.path().c_str(), *lock);
  if (error != 0) {
    fuse_reply_err(request, error);
  } else {
    fuse_reply_lock(request, lock);
  }
}

void set_lock(fuse_req_t request, fuse_ino_t ino, const fuse_file_info& info, const struct flock& lock,
              bool waits) {
  Node& node = node_of(ino);
  if (fails(request, "lock", node)) return;
  int error = node.locks.set(info.lock_owner, info.fh, node.path().c_str(), lock);
  while (error == EAGAIN && waits) {
    ::usleep(20'000);  // NFS clients ask the server again and again, too.
    error = fuse_req_interrupted(request) != 0
                ? EINTR
                : node.locks.set(info.lock_owner, info.fh, node.path().c_str(), lock);
  }
  fuse_reply_err(request, error);
}

void on_setlk(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info, struct flock* lock, int waits) {
  set_lock(request, ino, *info, *lock, waits != 0);
}

/// NFS makes a byte range lock of the whole file of it.
void on_flock(fuse_req_t request, fuse_ino_t ino, fuse_file_info* info, int operation) {
  struct flock lock {};
  lock.l_whence = SEEK_SET;
  lock.l_type = (operation & LOCK_UN) != 0 ? F_UNLCK : (operation & LOCK_EX) != 0 ? F_WRLCK : F_RDLCK;
  set_lock(request, ino, *info, lock, (operation & LOCK_NB) == 0);
}

/// Answers the commands of the test until it ends. What waits for a stalled operation ends with this process.
void obey() {
  for (std::string line; std::getline(std::cin, line);) {
    // A command may wait, and the end of the test has to be seen meanwhile. So each command has a thread.
    std::thread([line] { std::cout << conditions.command(line) << std::endl; }).detach();
  }
}

int usage() {
  std::cerr << "usage: remote-folder FOLDER MOUNTPOINT [cache=SECONDS] [local_locks]\n";
  return 2;
}

}  // namespace

int main(int count, char** arguments) {
  if (count < 3) return usage();
  fuse_lowlevel_ops operations{
      .init = on_init,
      .lookup = on_lookup,
      .forget = on_forget,
      .getattr = on_getattr,
      .setattr = on_setattr,
      .readlink = on_readlink,
      .mkdir = on_mkdir,
      .unlink = on_unlink,
      .rmdir = on_rmdir,
      .symlink = on_symlink,
      .rename = on_rename,
      .link = on_link,
      .open = on_open,
      .read = on_read,
      .write = on_write,
      .flush = on_flush,
      .release = on_release,
      .fsync = on_fsync,
      .opendir = on_opendir,
      .readdir = on_readdir,
      .releasedir = on_releasedir,
      .fsyncdir = on_fsyncdir,
      .statfs = on_statfs,
      .create = on_create,
      .getlk = on_getlk,
      .setlk = on_setlk,
      .flock = on_flock,
  };
  for (int i = 3; i < count; ++i) {
    const std::string option = arguments[i];
    if (option.starts_with("cache=")) {
      cache_s = std::stod(option.substr(6));
    } else if (option == "local_locks") {
      operations.getlk = nullptr;
      operations.setlk = nullptr;
      operations.flock = nullptr;
    } else {
      return usage();
    }
  }
  root.fd = ::open(arguments[1], O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (root.fd < 0) {
    std::perror(arguments[1]);
    return 1;
  }
  const char* mount_options[] = {"remote-folder",
                                 "-oallow_other,default_permissions,fsname=remote,subtype=folder", nullptr};
  fuse_args args = FUSE_ARGS_INIT(2, const_cast<char**>(mount_options));
  fuse_session* session = fuse_session_new(&args, &operations, sizeof(operations), nullptr);
  if (session == nullptr || fuse_session_mount(session, arguments[2]) != 0) return 1;
  // Each stalled operation takes a thread.
  fuse_loop_config* threads = fuse_loop_cfg_create();
  fuse_loop_cfg_set_max_threads(threads, 200);
  std::thread([session, threads] { fuse_session_loop_mt(session, threads); }).detach();
  std::cout << "mounted" << std::endl;
  obey();
  fuse_session_unmount(session);
  std::_Exit(0);
}
