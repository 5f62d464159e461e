#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <span>

namespace accel::train {

/// Reads tensors of a device while the device computes. Used by several threads at a time.
class DeviceReader {
 public:
  DeviceReader() = default;
  DeviceReader(const DeviceReader&) = delete;
  DeviceReader& operator=(const DeviceReader&) = delete;
  virtual ~DeviceReader() = default;

  /// Whether the host cannot read the memory of `tensor` itself.
  [[nodiscard]] virtual bool is_needed_for(const at::Tensor& tensor) const = 0;
  /// Copies the values of `from`, which is contiguous, to `to`, of from.nbytes() bytes. Nothing may change
  /// `from` meanwhile. Returns when the values are there.
  virtual void read(std::span<std::byte> to, const at::Tensor& from) = 0;
};

/// Pinned memory of the host. Lack of memory is an Error of kind kFailure.
at::Tensor pinned_bytes(std::int64_t bytes);

/// Copies on a stream of its own, through two pieces of pinned memory: while the host empties the one, the
/// device fills the other. Pinned memory for all that is read would have to be as large as a checkpoint.
class StagedReader final : public DeviceReader {
 public:
  struct Options {
    std::int64_t stage_bytes = std::int64_t{16} << 20;  ///< The most bytes of each piece.
    std::function<at::Tensor(std::int64_t bytes)> allocate = pinned_bytes;
    /// The stream of the copies; without it, another one of the pool for each reader. The pool is limited,
    /// and backends of collectives take their streams from it.
    std::optional<c10::Stream> lane = std::nullopt;
  };

  /// Values are read as they are when the work is done that the current stream of `device` has been given so
  /// far. Reading waits for no later work.
  explicit StagedReader(c10::Device device) : StagedReader(device, Options{}) {}
  StagedReader(c10::Device device, Options options);

  [[nodiscard]] bool is_needed_for(const at::Tensor& tensor) const override { return !tensor.is_cpu(); }
  void read(std::span<std::byte> to, const at::Tensor& from) override;

 private:
  struct Stage {
    explicit Stage(c10::DeviceType type) : filled(type) {}
    at::Tensor memory;  ///< Bytes, pinned.
    c10::Event filled;
  };

  void require_stages(std::int64_t bytes);

  Options options_;
  c10::Stream lane_;
  std::mutex mutex_;
  std::array<Stage, 2> stages_;
};

}  // namespace accel::train
