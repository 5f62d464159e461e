#include "memory.hpp"

#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <stdexcept>

namespace accel::sim {
namespace {

// A byte that makes a NaN of every floating type.
constexpr int kPoison = 0xFF;
constexpr std::size_t kPage = 4096;

std::size_t round_up(std::size_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

std::byte* map(std::size_t bytes, int protection, int flags, int file) {
  void* const address = ::mmap(nullptr, bytes, protection, flags, file, 0);
  if (address == MAP_FAILED) throw std::runtime_error("the simulated device cannot reserve its memory");
  return static_cast<std::byte*>(address);
}

}  // namespace

DeviceMemory::DeviceMemory(std::size_t bytes, std::size_t poison_up_to)
    : base_(map(2 * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1)),
      size_(bytes),
      poison_up_to_(poison_up_to) {
  if (::mprotect(base_ + size_, size_, PROT_READ | PROT_WRITE) != 0)
    throw std::runtime_error("the simulated device cannot get its memory");
}

void DeviceMemory::poison(void* address, std::size_t bytes) const {
  if (bytes <= poison_up_to_) std::memset(bytes_of(address), kPoison, bytes);
}

void* DeviceMemory::allocate(std::size_t bytes, StreamNumber stream, Order& order) {
  const std::size_t size = std::bit_ceil(std::max<std::size_t>(bytes, 512));
  release_unused(order);
  std::vector<void*>& ready = free_[{stream, size}];
  void* address = nullptr;
  if (!ready.empty()) {
    address = ready.back();
    ready.pop_back();
  } else {
    if (used_ + size > size_) return nullptr;
    address = base_ + used_;
    used_ += size;
    DeviceBlock& block = blocks_[address];
    block.bytes = size;
    block.stream = stream;
  }
  allocated_ += size;
  peak_ = std::max(peak_, allocated_);
  poison(address, size);
  return address;
}

void DeviceMemory::free(void* address, Order& order) {
  DeviceBlock& block = blocks_.at(address);
  allocated_ -= block.bytes;
  poison(address, block.bytes);
  for (const StreamNumber user : std::exchange(block.recorded, {})) block.users.push_back(order.record(user));
  if (block.users.empty()) {
    free_[{block.stream, block.bytes}].push_back(address);
  } else {
    waiting_.push_back(address);
  }
}

void DeviceMemory::record_stream(void* address, StreamNumber stream) {
  DeviceBlock& block = blocks_.at(address);
  if (stream != block.stream) block.recorded.push_back(stream);
}

void DeviceMemory::release_unused(const Order& order) {
  std::erase_if(waiting_, [&](void* address) {
    DeviceBlock& block = blocks_.at(address);
    const bool done = std::all_of(block.users.begin(), block.users.end(), [&](const Clock& clock) {
      for (StreamNumber stream = 0; stream < order.streams(); ++stream) {
        if (!order.is_known_to_host({stream, clock.time_of(stream)})) return false;
      }
      return true;
    });
    if (!done) return false;
    block.users.clear();
    free_[{block.stream, block.bytes}].push_back(address);
    return true;
  });
}

void* DeviceMemory::bytes_of(const void* address) const {
  return const_cast<std::byte*>(static_cast<const std::byte*>(address)) + size_;
}

bool DeviceMemory::contains(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  return byte >= base_ && byte < base_ + size_;
}

PinnedMemory::PinnedMemory(std::size_t bytes) : size_(bytes) {
  const int file = ::memfd_create("accel-sim-pinned", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, static_cast<off_t>(bytes)) != 0)
    throw std::runtime_error("the simulated device cannot get pinned memory");
  host_ = map(bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file);
  device_ = map(bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file);
  ::close(file);
}

void* PinnedMemory::allocate(std::size_t bytes) {
  const std::size_t size = round_up(std::max<std::size_t>(bytes, 1));
  // The first block that fits exactly, and that no copy uses any more.
  for (auto& [address, block] : blocks_) {
    if (block.in_use || block.bytes != size || is_in_flight(address, size)) continue;
    block.in_use = true;
    block.requested = bytes;
    block.history = {};
    std::memset(device_ + (address - host_), kPoison, size);
    return address;
  }
  if (used_ + size > size_) return nullptr;
  std::byte* const address = host_ + used_;
  used_ += size;
  blocks_[address] = {bytes, size, true, {}};
  std::memset(device_ + (address - host_), kPoison, size);
  return address;
}

void PinnedMemory::free(void* address) { blocks_.at(static_cast<std::byte*>(address)).in_use = false; }

bool PinnedMemory::contains(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  return byte >= host_ && byte < host_ + size_;
}

void* PinnedMemory::bytes_of(const void* address) const {
  return device_ + (static_cast<const std::byte*>(address) - host_);
}

std::pair<std::byte* const, PinnedMemory::Block>& PinnedMemory::block_of(const void* address) {
  return *std::prev(blocks_.upper_bound(const_cast<std::byte*>(static_cast<const std::byte*>(address))));
}

History& PinnedMemory::history(const void* address) { return block_of(address).second.history; }

void PinnedMemory::begin_copy(const void* address, std::size_t bytes, const Access& access, bool writes) {
  const auto* const begin = static_cast<const std::byte*>(address);
  const auto& [start, block] = block_of(address);
  // The first page may have other parts of the block, which stay open to the host. The last one is closed:
  // parts that begin in the middle of a page and are used on their own are rare.
  const std::size_t offset = static_cast<std::size_t>(begin - start);
  const std::size_t first = round_up(offset);
  const std::size_t last = offset == 0 ? round_up(bytes) : (offset + bytes) / kPage * kPage;
  const bool is_to_the_end = offset + bytes >= block.requested;
  const std::size_t end = is_to_the_end ? block.bytes : last;
  if (first >= end) return;
  copies_.push_back({start + first, end - first, access, writes});
  protect(start + first, end - first);
}

void PinnedMemory::end_copies(const Order& order) {
  std::vector<Copy> ended;
  std::erase_if(copies_, [&](const Copy& copy) {
    const bool is_done = order.is_known_to_host(copy.access.moment);
    if (is_done) ended.push_back(copy);
    return is_done;
  });
  for (const Copy& copy : ended) protect(copy.first, copy.bytes);
}

bool PinnedMemory::is_in_flight(const std::byte* first, std::size_t bytes) const {
  return std::any_of(copies_.begin(), copies_.end(), [&](const Copy& copy) {
    return copy.first < first + bytes && first < copy.first + copy.bytes;
  });
}

void PinnedMemory::protect(std::byte* first, std::size_t bytes) const {
  const auto allowed_on = [&](const std::byte* page) {
    int allowed = PROT_READ | PROT_WRITE;
    for (const Copy& copy : copies_) {
      if (page < copy.first || page >= copy.first + copy.bytes) continue;
      if (copy.writes) return PROT_NONE;
      allowed = PROT_READ;
    }
    return allowed;
  };
  std::byte* const end = first + bytes;
  for (std::byte* run = first; run < end;) {
    const int allowed = allowed_on(run);
    std::byte* next = run + kPage;
    while (next < end && allowed_on(next) == allowed) next += kPage;
    ::mprotect(run, static_cast<std::size_t>(next - run), allowed);
    run = next;
  }
}

std::string PinnedMemory::trespass(const void* address) const {
  const auto* const byte = static_cast<const std::byte*>(address);
  for (const Copy& copy : copies_) {
    if (byte < copy.first || byte >= copy.first + copy.bytes) continue;
    return fmt::format("the host {} pinned memory that {} on stream {} {}, and has not waited for it",
                       copy.writes ? "reads or writes" : "writes", copy.access.what,
                       copy.access.moment.stream, copy.writes ? "writes" : "reads");
  }
  return "";
}

}  // namespace accel::sim
