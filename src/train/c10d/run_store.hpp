#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>

namespace accel::train {

struct Rank;

/// How long rank 0 waits for the others, and how long they try to reach it.
inline constexpr std::chrono::seconds kJoinTime{300};
/// How long the store at an address may take to say whose it is.
inline constexpr std::chrono::seconds kRunTime{60};

/// The run and its attempt, from TORCHELASTIC_RUN_ID and TORCHELASTIC_RESTART_COUNT: the same text for all
/// ranks of a job, and for no other. A rank of the attempt before a restart is not one of this attempt.
std::string run_from_environment();

/// The store of the job, which rank 0 hosts at its address. Every key lies below the name of `run`. A rank
/// that finds the store of another run there is refused: the Error of kind kFailure names both runs and the
/// address. A rank that does not come within kJoinTime is an Error at rank 0 that names it. Collective.
c10::intrusive_ptr<c10d::Store> join_store(const Rank& rank, const std::string& run);

}  // namespace accel::train
