#pragma once

#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace accel {

/// What a rank does or waits in.
enum class FlightOp : std::uint8_t {
  kForward,  ///< A unit computes.
  kAllGather,
  kReduceScatter,
  kAllReduce,
  kBroadcast,
  kScatter,
  kExchange,   ///< Texts of all ranks, through the store.
  kHostWork,   ///< Long work in which nothing else is recorded, such as loading weights.
  kHostSync,   ///< The host waits for a GPU.
  kBackward,   ///< The backward of a micro-batch.
  kRecompute,  ///< A unit computes its forward again, in backward.
  kOptimizer,  ///< The optimizer changes weights.
  kAllToAll,
};

/// "all-gather", "forward".
std::string_view text_of(FlightOp op);

/// The ranks that work together in a collective: `count` of them, from `first`, `stride` apart. A count of 0
/// means that they are not known.
struct FlightGroup {
  std::string name;
  std::int32_t first = 0;
  std::int32_t stride = 1;
  std::int32_t count = 0;
  std::uint64_t issued = 0;  ///< Collectives so far.
  /// Collectives are enqueued in a stream of a GPU, as with NCCL: the wait() of c10d returns at once, and
  /// only the stream waits. Such a collective is open until a HostSync ends it.
  bool enqueues = false;

  /// Sets the ranks, if they are evenly spaced.
  void set_members(const std::vector<int>& ranks);
};

/// An entry of a rank's flight record. Times are nanoseconds since 1970; 0 is "not yet".
struct FlightEvent {
  std::uint64_t number = 0;  ///< Its place among the events of the rank, from 1.
  FlightOp op = FlightOp::kForward;
  std::int64_t begun_ns = 0;
  std::int64_t waited_ns = 0;  ///< When the rank, or its stream, began to wait for its end.
  std::int64_t ended_ns = 0;   ///< When this rank saw that it had ended.
  std::uint64_t in_group = 0;  ///< Its place among the collectives of its group, from 1; 0 for none.
  std::uint64_t bytes = 0;
  FlightGroup group;
  std::string unit;
};

/// What a rank's flight record says.
struct FlightRecord {
  int rank = 0;
  pid_t pid = 0;  ///< 0 before the process has begun.
  std::string host;
  std::int64_t step = 0;            ///< The step that is being computed; 0 before the first.
  std::uint64_t progress = 0;       ///< It grows with each event that begins or ends.
  std::vector<FlightEvent> events;  ///< The newest ones, oldest first.
};

/// Makes an empty record of a rank of this machine at `path`, for the launcher. False if the file cannot be
/// made, as on a full disk.
bool create_flight_record(const std::filesystem::path& path, int rank);
/// Notes the rank's process.
void set_flight_pid(const std::filesystem::path& path, pid_t pid);
/// Reads a record, which its rank may be writing. Nothing if the file is missing or none of this version.
std::optional<FlightRecord> read_flight_record(const std::filesystem::path& path);
struct FlightProgress {
  std::int64_t step = 0;        ///< FlightRecord's `step`.
  std::uint64_t events = 0;     ///< FlightRecord's `progress`.
  std::int64_t done = 0;        ///< The last step that has changed the weights, or was skipped.
  std::int64_t checkpoint = 0;  ///< The step of the newest checkpoint that is whole; 0 for none.
};
/// The rank's progress alone.
std::optional<FlightProgress> read_flight_progress(const std::filesystem::path& path);
/// Whether the rank is in work of kind kHostWork.
bool is_in_host_work(const FlightRecord& record);

/// The time of day, as in a record.
std::int64_t nanoseconds_since_1970();

/// The variable that tells a worker where its record is.
inline constexpr const char* kFlightVariable = "ACCEL_FLIGHT_RECORD";

/// This process's record, in shared memory of the file that kFlightVariable names, so that it can be read
/// from outside at any time and after the end of the process. The functions may be called from any thread,
/// and do nothing if there is no record.
namespace flight {

/// Opens the record. Call once, before other threads call anything here.
void open();
void set_step(std::int64_t step);
/// Notes that a step is done: what follows, such as an evaluation, belongs to no step.
void set_done(std::int64_t step);
/// Notes that the checkpoint of a step is whole.
void set_checkpoint(std::int64_t step);
/// Notes that an operation begins, and returns its number; 0 without a record. The unit is that of Label.
std::uint64_t begin(FlightOp op, std::size_t bytes = 0, FlightGroup* group = nullptr);
/// Notes that this rank waits for the end of an operation.
void wait(std::uint64_t number);
/// Notes that an operation has ended. An enqueued collective stays open: that the rank may go on does not say
/// that it has ended.
void end(std::uint64_t number);

/// An operation that ends with the scope, and for which this rank waits if it is a collective.
class Scope {
 public:
  explicit Scope(FlightOp op, std::size_t bytes = 0, FlightGroup* group = nullptr)
      : number_(begin(op, bytes, group)) {
    if (group != nullptr) wait(number_);
  }
  Scope(const Scope&) = delete;
  Scope& operator=(const Scope&) = delete;
  ~Scope() { end(number_); }

 private:
  std::uint64_t number_;
};

/// A scope in which the host waits until a GPU has done what its current stream was given. At the end the
/// enqueued collectives have ended for which the stream waited before the scope began, unless an exception
/// leaves the scope.
class HostSync {
 public:
  /// Notes nothing for a tensor that is on the CPU already, for which `waits` is false.
  explicit HostSync(bool waits);
  HostSync(const HostSync&) = delete;
  HostSync& operator=(const HostSync&) = delete;
  ~HostSync();

 private:
  std::uint64_t number_;
  int exceptions_;
};

/// What operations that begin on this thread belong to: a unit, or a phase of a run. `text` must outlive it.
class Label {
 public:
  explicit Label(std::string_view text);
  Label(const Label&) = delete;
  Label& operator=(const Label&) = delete;
  ~Label();

 private:
  std::string_view before_;
};

}  // namespace flight

}  // namespace accel
