#include "train/c10d/group.hpp"

#include <ATen/ATen.h>
#include <c10/util/Exception.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "base/error.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "train/c10d/fake_backend.hpp"
#include "train/c10d/gather_object.hpp"
#include "train/c10d/host_staged_backend.hpp"
#include "train/c10d/nccl.hpp"
#include "train/c10d/numeric_names.hpp"
#include "train/c10d/run_store.hpp"
#include "train/c10d/shm_backend.hpp"

namespace accel::train {
namespace {

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') {
    throw Error(ErrorKind::kUsage, fmt::format("{} is not set", name))
        .hint("accel-worker is started by `accel launch`, not by hand");
  }
  return value;
}

int integer_variable(const char* name) {
  const std::string text = variable(name);
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (*end != '\0' || value < 0 || value > 1'000'000) {
    throw Error(ErrorKind::kUsage, fmt::format("{} is '{}', not a number", name, text));
  }
  return static_cast<int>(value);
}

bool is_loopback(const std::string& address) { return address == "localhost" || address.starts_with("127."); }

/// Returns `tensor` on `device`. If it is on another device, the host waits for the GPU of the two.
at::Tensor moved(const at::Tensor& tensor, at::Device device) {
  const flight::HostSync sync(tensor.device() != device);
  return tensor.to(device);
}

/// What is needed to create a backend.
struct BackendRequest {
  c10::intrusive_ptr<c10d::Store> store;
  Rank rank;                 ///< This rank's place in the group.
  std::vector<int> members;  ///< The ranks' numbers in the job, for messages.
  std::string name;
  at::Device device;
  std::chrono::milliseconds timeout;
};

c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendRequest& request) {
  const Rank& rank = request.rank;
  const auto options = c10d::ProcessGroupGloo::Options::create(request.timeout);
  const char* interfaces = std::getenv("GLOO_SOCKET_IFNAME");
  if (is_loopback(rank.master_addr)) {
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
  } else if (interfaces != nullptr && *interfaces != '\0') {
    for (const std::string& name : split(interfaces, ','))
      options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForInterface(name));
  } else {
    options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
  }
  return c10::make_intrusive<c10d::ProcessGroupGloo>(request.store, rank.rank, rank.world_size, options);
}

/// Whether all ranks are on one machine, so that they can share memory.
bool is_one_machine(const Rank& rank) { return rank.local_world_size == rank.world_size; }

void require_shm_fits(const Rank& rank, at::Device device) {
  if (!device.is_cpu()) {
    throw Error(ErrorKind::kUsage, "backend: shm is for CPU ranks, and this one has a GPU")
        .hint("use backend: nccl, or use_cpu: true");
  }
  if (!is_one_machine(rank)) {
    throw Error(ErrorKind::kUsage,
                fmt::format("backend: shm needs all {} ranks on one machine, found {} on this one",
                            rank.world_size, rank.local_world_size))
        .hint("use backend: gloo");
  }
}

c10::intrusive_ptr<c10d::Backend> make_shm(const BackendRequest& request) {
  const auto options = c10::make_intrusive<ShmBackend::Options>();
  options->timeout = request.timeout;
  options->global_ranks_in_group.assign(request.members.begin(), request.members.end());
  return ShmBackend::connect(request.store, request.rank.rank, request.rank.world_size, options);
}

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const BackendRequest& request) {
  return make_nccl(
      {request.store, request.rank.rank, request.members, request.name, request.device, request.timeout});
}

/// Whether the backend enqueues collectives on the device and the host does not wait for them, as NCCL and
/// the libraries of other accelerators do. The others end a collective on the host.
bool enqueues(const c10d::Backend& backend) {
  const std::string name = backend.getBackendName();
  return name != "gloo" && name != ShmBackend::kName && name != FakeBackend::kName;
}

/// Creates the fastest backend for the device, which a configuration without a backend gets.
c10::intrusive_ptr<c10d::Backend> make_best(const BackendRequest& request) {
  if (!request.device.is_cpu()) return make_nccl_backend(request);
  if (!is_one_machine(request.rank)) return make_gloo(request);
  try {
    return make_shm(request);
  } catch (const Error& error) {
    // Every rank gets this error, so all of them go on with Gloo.
    if (request.rank.rank == 0)
      log::warn(fmt::format("{}; the ranks use Gloo, which is slower", error.message()));
    return make_gloo(request);
  }
}

c10::intrusive_ptr<c10d::Backend> make_backend(config::Backend backend, const BackendRequest& request) {
  switch (backend) {
    case config::Backend::kNccl:
      return make_nccl_backend(request);
    case config::Backend::kGloo:
      if (request.device.is_cpu()) return make_gloo(request);
      return c10::make_intrusive<HostStagedBackend>(make_gloo(request));
    case config::Backend::kShm:
      return make_shm(request);
    case config::Backend::kFake:
      return c10::make_intrusive<FakeBackend>(request.rank.rank, request.rank.world_size);
    case config::Backend::kAuto:
      break;
  }
  return make_best(request);
}

}  // namespace

Rank Rank::from_environment() {
  Rank rank;
  rank.rank = integer_variable("RANK");
  rank.world_size = integer_variable("WORLD_SIZE");
  rank.local_rank = integer_variable("LOCAL_RANK");
  if (std::getenv("LOCAL_WORLD_SIZE") != nullptr)
    rank.local_world_size = integer_variable("LOCAL_WORLD_SIZE");
  rank.master_addr = variable("MASTER_ADDR");
  rank.master_port = integer_variable("MASTER_PORT");
  if (rank.rank >= rank.world_size) {
    throw Error(ErrorKind::kUsage,
                fmt::format("RANK is {}, but WORLD_SIZE is {}", rank.rank, rank.world_size));
  }
  return rank;
}

Pending::Pending(c10::intrusive_ptr<c10d::Work> work, std::uint64_t event, std::function<void()> finish)
    : work_(std::move(work)), event_(event), finish_(std::move(finish)) {}
Pending::Pending(Pending&&) noexcept = default;
Pending& Pending::operator=(Pending&&) noexcept = default;
Pending::~Pending() = default;

void Pending::wait() {
  if (work_ != nullptr) {
    flight::wait(event_);
    std::exchange(work_, nullptr)->wait();
    flight::end(event_);
  }
  if (finish_) std::exchange(finish_, nullptr)();
}

Group::Group() : device_(at::kCPU) {}
Group::Group(Group&&) noexcept = default;
Group& Group::operator=(Group&&) noexcept = default;
Group::~Group() = default;

Group Group::connect(const Rank& rank, config::Backend backend, at::Device device,
                     std::chrono::milliseconds timeout) {
  Group group;
  group.timeout_ = timeout;
  group.rank_ = rank.rank;
  group.size_ = rank.world_size;
  group.device_ = device;
  group.place_ = rank;
  group.asked_ = backend;
  for (int member = 0; member < rank.world_size; ++member) group.members_.push_back(member);
  group.flight_.name = "world";
  group.flight_.set_members(group.members_);
  // A single rank needs no backend, but the user may ask for NCCL to see that it works.
  if (rank.world_size == 1 && backend != config::Backend::kNccl) return group;
  // Checked before the rendezvous, where the others would wait for a rank that is refused.
  if (backend == config::Backend::kShm) require_shm_fits(rank, device);
  const NumericNames numeric_names;
  if (backend != config::Backend::kFake) {
    group.store_ = join_store(rank, run_from_environment());
    group.store_->setTimeout(timeout);
  }
  group.use(make_backend(backend, {group.store_, rank, group.members_, "world", device, timeout}));
  return group;
}

Group Group::split(std::span<const int> ranks, const std::string& name) {
  Group group;
  group.size_ = static_cast<int>(ranks.size());
  group.device_ = device_;
  group.place_ = place_;
  group.asked_ = asked_;
  group.timeout_ = timeout_;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == rank_) group.rank_ = static_cast<int>(i);
    group.members_.push_back(members_.at(static_cast<std::size_t>(ranks[i])));
  }
  if (group.size_ == 1) return group;
  const NumericNames numeric_names;
  const std::string own_name = fmt::format("{}/{}", name, group.members_.front());
  group.flight_.name = own_name;
  group.flight_.set_members(group.members_);
  if (store_ != nullptr) group.store_ = c10::make_intrusive<c10d::PrefixStore>("accel/" + own_name, store_);
  // Ranks of one machine have consecutive numbers, so the first of them identifies the machine.
  const std::string machine =
      place_.local_world_size == 0 ? "" : std::to_string(place_.rank - place_.local_rank);
  const std::vector<std::string> machines = group.all_gather_object(machine);
  Rank rank = place_;
  rank.rank = group.rank_;
  rank.world_size = group.size_;
  rank.local_world_size =
      machine.empty() ? 0 : static_cast<int>(std::count(machines.begin(), machines.end(), machine));
  group.use(make_backend(asked_, {group.store_, rank, group.members_, own_name, device_, timeout_}));
  return group;
}

void Group::use(c10::intrusive_ptr<c10d::Backend> backend) {
  backend_ = std::move(backend);
  has_average_ = backend_->getBackendName() != "gloo";
  flight_.enqueues = enqueues(*backend_);
}

Group Group::over(c10::intrusive_ptr<c10d::Backend> backend, at::Device device) {
  Group group;
  group.rank_ = backend->getRank();
  group.size_ = backend->getSize();
  group.device_ = device;
  group.flight_.enqueues = enqueues(*backend);
  if (group.size_ > 1 || group.flight_.enqueues) group.backend_ = std::move(backend);
  return group;
}

std::string Group::backend_name() const { return backend_ == nullptr ? "none" : backend_->getBackendName(); }

Pending Group::all_gather(at::Tensor out, at::Tensor in) {
  if (is_alone()) {
    out.copy_(in);
    return {};
  }
  const std::uint64_t event = flight::begin(FlightOp::kAllGather, out.nbytes(), &flight_);
  return {backend_->_allgather_base(out, in), event};
}

void Group::all_gather(std::vector<at::Tensor> outs, std::vector<at::Tensor> ins,
                       std::span<Pending* const> pending) {
  if (outs.size() < 2 || is_alone() || !backend_->supportsCoalescing()) {
    for (std::size_t i = 0; i < outs.size(); ++i) *pending[i] = all_gather(outs[i], ins[i]);
    return;
  }
  std::size_t bytes = 0;
  for (const at::Tensor& out : outs) bytes += out.nbytes();
  const std::uint64_t event = flight::begin(FlightOp::kAllGather, bytes, &flight_);
  const c10::intrusive_ptr<c10d::Work> work = backend_->allgather_into_tensor_coalesced(outs, ins);
  for (Pending* each : pending) *each = Pending(work, event);
}

Pending Group::reduce_scatter_mean(at::Tensor out, at::Tensor in) {
  if (is_alone()) {
    out.copy_(in);
    return {};
  }
  const std::uint64_t event = flight::begin(FlightOp::kReduceScatter, in.nbytes(), &flight_);
  c10d::ReduceScatterOptions options;
  if (has_average_) {
    options.reduceOp = c10d::ReduceOp::AVG;
    return {backend_->_reduce_scatter_base(out, in, options), event};
  }
  return {backend_->_reduce_scatter_base(out, in, options), event, [out, size = size_] { out.div_(size); }};
}

Pending Group::reduce_scatter_sum(at::Tensor out, at::Tensor in) {
  if (is_alone()) {
    out.copy_(in);
    return {};
  }
  const std::uint64_t event = flight::begin(FlightOp::kReduceScatter, in.nbytes(), &flight_);
  return {backend_->_reduce_scatter_base(out, in), event};
}

Pending Group::all_reduce_mean(at::Tensor tensor) {
  if (is_alone()) return {};
  std::vector<at::Tensor> tensors = {tensor};
  const std::uint64_t event = flight::begin(FlightOp::kAllReduce, tensor.nbytes(), &flight_);
  c10d::AllreduceOptions options;
  if (has_average_) {
    options.reduceOp = c10d::ReduceOp::AVG;
    return {backend_->allreduce(tensors, options), event};
  }
  return {backend_->allreduce(tensors, options), event, [tensor, size = size_] { tensor.div_(size); }};
}

Pending Group::all_reduce_sum(at::Tensor tensor) {
  if (is_alone()) return {};
  std::vector<at::Tensor> tensors = {tensor};
  const std::uint64_t event = flight::begin(FlightOp::kAllReduce, tensor.nbytes(), &flight_);
  return {backend_->allreduce(tensors), event};
}

Pending Group::all_to_all(at::Tensor out, at::Tensor in) {
  if (is_alone()) {
    out.copy_(in);
    return {};
  }
  const std::uint64_t event = flight::begin(FlightOp::kAllToAll, in.nbytes(), &flight_);
  std::vector<std::int64_t> equal_parts;
  return {backend_->alltoall_base(out, in, equal_parts, equal_parts), event};
}

Pending Group::all_reduce_max(at::Tensor tensor) {
  if (is_alone()) return {};
  std::vector<at::Tensor> tensors = {tensor};
  const std::uint64_t event = flight::begin(FlightOp::kAllReduce, tensor.nbytes(), &flight_);
  c10d::AllreduceOptions options;
  options.reduceOp = c10d::ReduceOp::MAX;
  return {backend_->allreduce(tensors, options), event};
}

// The values go to a device from pinned memory: a copy from other memory would make the host wait. They stay
// there until the host has read the sums.
void Group::all_reduce_sum(std::span<double> values, const at::Tensor& more) {
  if (is_alone() && !more.defined()) return;
  const at::Tensor on_host =
      at::from_blob(values.data(), {static_cast<std::int64_t>(values.size())}, at::kDouble);
  const at::Tensor staged =
      at::empty(on_host.sizes(), on_host.options().pinned_memory(!device_.is_cpu())).copy_(on_host);
  std::vector<at::Tensor> tensors = {staged.to(device_, /*non_blocking=*/true)};
  if (more.defined()) tensors.front().add_(more);
  if (!is_alone()) {
    const flight::Scope scope(FlightOp::kAllReduce, on_host.nbytes(), &flight_);
    backend_->allreduce(tensors)->wait();
  }
  const flight::HostSync sync(!device_.is_cpu());
  on_host.copy_(tensors.front());
}

// The tensor is sent as bytes, because not every backend supports every dtype.
void Group::broadcast(at::Tensor tensor) {
  if (is_alone() || tensor.numel() == 0) return;
  const at::Tensor there = moved(tensor, device_).contiguous();
  std::vector<at::Tensor> tensors = {there.reshape({-1}).view(at::kByte)};
  const flight::Scope scope(FlightOp::kBroadcast, tensor.nbytes(), &flight_);
  backend_->broadcast(tensors)->wait();
  if (there.is_same(tensor)) return;
  const flight::HostSync sync(tensor.device() != device_);
  tensor.copy_(there);
}

std::vector<std::byte> Group::broadcast_bytes(std::vector<std::byte> bytes) {
  if (is_alone()) return bytes;
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(bytes.size()), at::kLong);
  broadcast(length);
  bytes.resize(static_cast<std::size_t>(length.item<std::int64_t>()));
  broadcast(at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte));
  return bytes;
}

std::vector<std::vector<std::byte>> Group::all_gather_bytes(std::span<const std::byte> bytes) {
  std::vector<double> lengths(static_cast<std::size_t>(size_));
  lengths[static_cast<std::size_t>(rank_)] = static_cast<double>(bytes.size());
  all_reduce_sum(lengths);
  const auto longest = static_cast<std::int64_t>(*std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::vector<std::byte>> all(lengths.size());
  if (longest == 0) return all;
  at::Tensor own = at::zeros({longest}, at::kByte);
  std::copy(bytes.begin(), bytes.end(), static_cast<std::byte*>(own.mutable_data_ptr()));
  own = moved(own, device_);
  at::Tensor gathered = at::empty({longest * size_}, own.options());
  all_gather(gathered, own).wait();
  gathered = moved(gathered, at::kCPU);
  const auto* at = static_cast<const std::byte*>(gathered.const_data_ptr());
  for (std::size_t rank = 0; rank < all.size(); ++rank, at += longest)
    all[rank].assign(at, at + static_cast<std::ptrdiff_t>(lengths[rank]));
  return all;
}

void Group::scatter(at::Tensor out, std::vector<at::Tensor> parts) {
  if (is_alone()) {
    out.copy_(parts.at(0));
    return;
  }
  if (out.numel() == 0) return;
  for (at::Tensor& part : parts) part = part.view(at::kByte);
  std::vector<at::Tensor> outputs = {out.view(at::kByte)};
  std::vector<std::vector<at::Tensor>> inputs;
  if (rank_ == 0) inputs.push_back(std::move(parts));
  const flight::Scope scope(FlightOp::kScatter, out.nbytes(), &flight_);
  backend_->scatter(outputs, inputs)->wait();
}

void Group::barrier() {
  double one = 1;
  all_reduce_sum({&one, 1});
}

void Group::shut_down() {
  if (is_alone()) return;
  try {
    backend_->shutdown();
  } catch (const std::exception& error) {
    log::warn(
        fmt::format("rank {} could not shut down its group of {} ranks: {}", rank_, size_, error.what()));
  }
}

std::vector<std::string> Group::all_gather_object(const std::string& text) {
  if (size_ == 1) return {text};
  // Without a store the other ranks do not exist.
  if (store_ == nullptr) return std::vector<std::string>(static_cast<std::size_t>(size_), text);
  // The texts of the ranks differ in length, and what differs between ranks is reported as an error of
  // theirs.
  const flight::Scope scope(FlightOp::kExchange, 0, &flight_);
  return StoreGather(*store_, rank_, members_, timeout_).all_gather(object_gathers_++, text);
}

std::vector<std::string> Group::gather_object(const std::string& text) {
  if (size_ == 1 || store_ == nullptr)
    return rank_ == 0 ? all_gather_object(text) : std::vector<std::string>();
  // The texts of the ranks differ in length, and what differs between ranks is reported as an error of
  // theirs.
  const flight::Scope scope(FlightOp::kExchange, 0, &flight_);
  return StoreGather(*store_, rank_, members_, timeout_).gather(object_gathers_++, text);
}

}  // namespace accel::train
