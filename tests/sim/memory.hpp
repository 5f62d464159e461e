#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "order.hpp"

namespace accel::sim {

/// A block of the device's memory, handed out again and again.
struct DeviceBlock {
  std::size_t bytes = 0;
  StreamNumber stream = 0;   ///< The stream that the block belongs to while it is free.
  std::vector<Clock> users;  ///< Where other streams stood that were recorded as users when it was freed.
  std::vector<StreamNumber> recorded;  ///< The streams that were recorded as users since it was handed out.
  History history;
};

/// The memory of the device. Its addresses cannot be read or written by the host, so that a kernel of the CPU
/// which gets a tensor of the device by accident ends the process. The bytes lie at another address.
///
/// Blocks are handed out as by a caching allocator: a freed block goes to the next request of the same
/// stream, at once. Sizes are rounded up to powers of two, so that blocks change hands often.
class DeviceMemory {
 public:
  /// Reserves addresses for `bytes`. Memory is taken from the system when it is first written. Blocks of up
  /// to `poison_up_to` bytes are filled with NaN.
  DeviceMemory(std::size_t bytes, std::size_t poison_up_to);

  /// Returns the address of a block with at least `bytes`, or null if the device has no more memory.
  void* allocate(std::size_t bytes, StreamNumber stream, Order& order);
  /// Takes a block back. It goes to another request when the streams that were recorded have come as far as
  /// they were told until now, and the host knows it.
  void free(void* address, Order& order);
  void record_stream(void* address, StreamNumber stream);

  /// Returns where the bytes of an address of the device lie.
  [[nodiscard]] void* bytes_of(const void* address) const;
  [[nodiscard]] bool contains(const void* address) const;
  /// The block that starts at an address.
  DeviceBlock& block(void* address) { return blocks_.at(address); }

  [[nodiscard]] std::size_t allocated() const { return allocated_; }
  [[nodiscard]] std::size_t peak() const { return peak_; }
  void reset_peak() { peak_ = allocated_; }

 private:
  void release_unused(const Order& order);
  void poison(void* address, std::size_t bytes) const;

  std::byte* base_ = nullptr;
  std::size_t size_ = 0;
  std::size_t poison_up_to_ = 0;
  std::size_t used_ = 0;
  std::size_t allocated_ = 0;
  std::size_t peak_ = 0;
  std::map<void*, DeviceBlock> blocks_;
  std::map<std::pair<StreamNumber, std::size_t>, std::vector<void*>> free_;
  std::vector<void*> waiting_;  ///< Freed blocks that other streams may still use.
};

/// Memory of the host that the device copies to and from by itself. While a copy is under way that the host
/// has not waited for, the host cannot touch what the copy writes, nor write what it reads: such an access
/// ends the process with a message.
class PinnedMemory {
 public:
  explicit PinnedMemory(std::size_t bytes);

  void* allocate(std::size_t bytes);
  void free(void* address);
  [[nodiscard]] bool contains(const void* address) const;
  [[nodiscard]] void* bytes_of(const void* address) const;

  /// Who accessed the block of `address` last, beside the host.
  History& history(const void* address);
  /// Notes a copy of the device to or from `bytes` at `address`.
  void begin_copy(const void* address, std::size_t bytes, const Access& access, bool writes);
  /// Gives the host access to what the copies that it knows to have ended have used.
  void end_copies(const Order& order);
  /// Returns a message about the copy that forbids the host the byte at `address`; empty if none does.
  [[nodiscard]] std::string trespass(const void* address) const;

 private:
  struct Copy {
    std::byte* first = nullptr;  ///< The pages that the copy uses.
    std::size_t bytes = 0;
    Access access;
    bool writes = false;
  };
  struct Block {
    std::size_t requested = 0;
    std::size_t bytes = 0;
    bool in_use = false;
    History history;
  };
  std::pair<std::byte* const, Block>& block_of(const void* address);
  void protect(std::byte* first, std::size_t bytes) const;
  [[nodiscard]] bool is_in_flight(const std::byte* first, std::size_t bytes) const;

  std::byte* host_ = nullptr;
  std::byte* device_ = nullptr;
  std::size_t size_ = 0;
  std::size_t used_ = 0;
  std::map<std::byte*, Block> blocks_;
  std::vector<Copy> copies_;
};

}  // namespace accel::sim
