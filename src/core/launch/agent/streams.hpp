#pragma once

#include <filesystem>

#include "core/launch/agent/plan.hpp"
#include "core/launch/output/relay.hpp"
#include "core/launch/output/terminal.hpp"

namespace accel::launch {

/// What becomes of a worker's stdout: its log file, and the screen if the plan says so; on stderr if
/// `moves_out`. `terminal` and `logs` must outlive the relay.
Relay out_relay(const WorkerPlan& worker, Fd source, Terminal& terminal, LogQueue& logs, bool moves_out);
/// What becomes of its stderr. The screen does not get the error with which our worker ends, nor what
/// follows.
Relay err_relay(const WorkerPlan& worker, Fd source, Terminal& terminal, LogQueue& logs);

/// The path of one of a worker's log files; empty without logs.
std::filesystem::path log_of(const WorkerPlan& worker, const char* name);

}  // namespace accel::launch
