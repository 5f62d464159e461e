// How fast can bytes of two files be put together into one, durably? Times the ways that a merge could use,
// in one run, taking turns. Build and run: bench/copy_ways FOLDER [GIGABYTES] [ROUNDS]
//
// The last line of each way is the median; "cp" is two calls of cp and an fsync.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace {

using Size = std::int64_t;

constexpr Size kPiece = Size{32} << 20;

void require(bool good, const char* what) {
  if (good) return;
  std::perror(what);
  std::exit(1);
}

int open_or_die(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
  require(fd >= 0, path.c_str());
  return fd;
}

// One input and where it goes.
struct Part {
  int source;
  Size bytes;
  Size target;
};

void write_back(int out, Size at, Size bytes) { ::sync_file_range(out, at, bytes, SYNC_FILE_RANGE_WRITE); }

void by_copy_file_range(const Part& part, int out, bool early_write_back) {
  for (Size done = 0; done < part.bytes;) {
    off_t from = done;
    off_t to = part.target + done;
    const Size wanted = std::min(kPiece, part.bytes - done);
    const ssize_t n = ::copy_file_range(part.source, &from, out, &to, static_cast<std::size_t>(wanted), 0);
    require(n > 0, "copy_file_range");
    if (early_write_back) write_back(out, part.target + done, n);
    done += n;
  }
}

void by_sendfile(const Part& part, int out) {
  require(::lseek(out, part.target, SEEK_SET) == part.target, "lseek");
  for (off_t from = 0; from < part.bytes;) {
    const off_t begin = from;
    const ssize_t n = ::sendfile(out, part.source, &from,
                                 static_cast<std::size_t>(std::min<Size>(kPiece, part.bytes - from)));
    require(n > 0, "sendfile");
    write_back(out, part.target + begin, n);
  }
}

void by_read_and_write(const Part& part, int out, Size block) {
  std::vector<char> buffer(static_cast<std::size_t>(block));
  for (Size done = 0; done < part.bytes;) {
    const auto wanted = static_cast<std::size_t>(std::min(block, part.bytes - done));
    const ssize_t n = ::pread(part.source, buffer.data(), wanted, done);
    require(n > 0 && ::pwrite(out, buffer.data(), static_cast<std::size_t>(n), part.target + done) == n,
            "copy");
    write_back(out, part.target + done, n);
    done += n;
  }
}

void by_mmap_and_write(const Part& part, int out) {
  for (Size done = 0; done < part.bytes;) {
    const Size wanted = std::min(kPiece, part.bytes - done);
    void* source = ::mmap(nullptr, static_cast<std::size_t>(wanted), PROT_READ, MAP_SHARED | MAP_POPULATE,
                          part.source, done);
    require(source != MAP_FAILED, "mmap");
    require(::pwrite(out, source, static_cast<std::size_t>(wanted), part.target + done) == wanted, "pwrite");
    write_back(out, part.target + done, wanted);
    ::munmap(source, static_cast<std::size_t>(wanted));
    done += wanted;
  }
}

// Past the page cache on the way out; needs aligned sizes, which the benchmark's are.
void by_direct_write(const Part& part, const std::string& target, Size block) {
  const int out = open_or_die(target, O_WRONLY | O_DIRECT);
  void* buffer = nullptr;
  require(::posix_memalign(&buffer, 4096, static_cast<std::size_t>(block)) == 0, "posix_memalign");
  for (Size done = 0; done < part.bytes; done += block) {
    const auto wanted = static_cast<std::size_t>(std::min(block, part.bytes - done));
    require(::pread(part.source, buffer, wanted, done) == static_cast<ssize_t>(wanted), "pread");
    require(::pwrite(out, buffer, wanted, part.target + done) == static_cast<ssize_t>(wanted), "pwrite");
  }
  std::free(buffer);
  ::close(out);
}

double seconds_of(const std::function<void()>& action) {
  const auto begin = std::chrono::steady_clock::now();
  action();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void make_input(const std::string& path, Size bytes) {
  const int fd = open_or_die(path, O_WRONLY | O_CREAT | O_TRUNC);
  std::vector<unsigned> block(std::size_t{1} << 20);
  unsigned state = 1;
  for (Size done = 0; done < bytes; done += static_cast<Size>(block.size() * sizeof(unsigned))) {
    for (unsigned& word : block) word = state = state * 1664525U + 1013904223U;
    const auto n =
        static_cast<std::size_t>(std::min<Size>(bytes - done, static_cast<Size>(block.size()) * 4));
    require(::write(fd, block.data(), n) == static_cast<ssize_t>(n), "write");
  }
  require(::fsync(fd) == 0, "fsync");
  ::close(fd);
}

void sync_and_close(int fd) {
  require(::fsync(fd) == 0, "fsync");
  ::close(fd);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) {
    std::fprintf(stderr, "usage: copy_ways FOLDER [GIGABYTES] [ROUNDS]\n");
    return 2;
  }
  const std::string folder = argv[1];
  const Size half = (argc > 2 ? std::atoll(argv[2]) : 4) * 1'000'000'000 / 2 / kPiece * kPiece;
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 3;
  const std::string target = folder + "/target";
  std::vector<Part> parts;
  for (const char* name : {"/a", "/b"}) {
    make_input(folder + name, half);
    parts.push_back({open_or_die(folder + name, O_RDONLY), half, half * static_cast<Size>(parts.size())});
  }

  using Way = std::function<void(int out)>;
  const auto one_thread = [&](auto copy) {
    return [&, copy](int out) {
      for (const Part& part : parts) copy(part, out);
    };
  };
  const auto two_threads = [&](auto copy) {
    return [&, copy](int out) {
      std::thread other([&] { copy(parts[1], out); });
      copy(parts[0], out);
      other.join();
    };
  };
  const auto reserved = [&](Way way) {
    return [&, way](int out) {
      require(::fallocate(out, 0, 0, 2 * half) == 0, "fallocate");
      way(out);
    };
  };
  const auto ranges = [](const Part& part, int out) { by_copy_file_range(part, out, true); };
  const auto mib = [](const Part& part, int out) { by_read_and_write(part, out, Size{1} << 20); };
  const std::vector<std::pair<std::string, Way>> ways = {
      {"copy_file_range, reserved, early write-back", reserved(one_thread(ranges))},
      {"copy_file_range, reserved, early write-back, 2 threads", reserved(two_threads(ranges))},
      {"copy_file_range, reserved",
       reserved(one_thread([](const Part& p, int o) { by_copy_file_range(p, o, false); }))},
      {"copy_file_range, early write-back", one_thread(ranges)},
      {"sendfile, reserved, early write-back", reserved(one_thread(by_sendfile))},
      {"read and write 1 MiB, reserved", reserved(one_thread(mib))},
      {"read and write 1 MiB, reserved, 2 threads", reserved(two_threads(mib))},
      {"read and write 24 MiB, reserved",
       reserved(one_thread([](const Part& p, int o) { by_read_and_write(p, o, Size{24} << 20); }))},
      {"mmap and write, reserved", reserved(one_thread(by_mmap_and_write))},
      {"O_DIRECT write 16 MiB, reserved",
       reserved(one_thread([&](const Part& p, int) { by_direct_write(p, target, Size{16} << 20); }))},
      {"O_DIRECT write 16 MiB, reserved, 2 threads",
       reserved(two_threads([&](const Part& p, int) { by_direct_write(p, target, Size{16} << 20); }))},
  };
  std::map<std::string, std::vector<double>> results;
  for (int round = 0; round < rounds; ++round) {
    for (const auto& [name, way] : ways) {
      results[name].push_back(seconds_of([&, &way = way] {
        const int out = open_or_die(target, O_RDWR | O_CREAT | O_TRUNC);
        way(out);
        sync_and_close(out);
      }));
      ::unlink(target.c_str());
      ::sync();
    }
    results["cp, then fsync"].push_back(seconds_of([&] {
      for (const char* name : {"/a", "/b"}) {
        const std::string copy = folder + name + ".copy";
        require(std::system(("cp --reflink=never " + folder + name + " " + copy).c_str()) == 0, "cp");
        sync_and_close(open_or_die(copy, O_RDONLY));
      }
    }));
    for (const char* name : {"/a.copy", "/b.copy"}) ::unlink((folder + name).c_str());
    ::sync();
  }
  std::vector<double> base = results["cp, then fsync"];
  std::sort(base.begin(), base.end());
  std::printf("| way | median | range | times cp's |\n| --- | --- | --- | --- |\n");
  for (auto& [name, seconds] : results) {
    std::sort(seconds.begin(), seconds.end());
    const double median = seconds[seconds.size() / 2];
    std::printf("| %s | %.2f s | %.2f to %.2f s | %.2f |\n", name.c_str(), median, seconds.front(),
                seconds.back(), median / base[base.size() / 2]);
  }
  for (const char* name : {"/a", "/b"}) ::unlink((folder + name).c_str());
  return 0;
}
