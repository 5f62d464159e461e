#pragma once

#include "cli/line/command_line.hpp"

namespace accel::cli {

/// Each function adds one command.
void add_launch(CommandLine& line);
void add_check(CommandLine& line);
void add_plan(CommandLine& line);
void add_config(CommandLine& line);
void add_save(CommandLine& line);
void add_import(CommandLine& line);
void add_load(CommandLine& line);
void add_merge_weights(CommandLine& line);
void add_inspect(CommandLine& line);
void add_repair(CommandLine& line);
void add_verify(CommandLine& line);
void add_diff(CommandLine& line);
void add_checkpoints(CommandLine& line);
void add_evaluate(CommandLine& line);
void add_runs(CommandLine& line);
void add_report(CommandLine& line);
void add_watch(CommandLine& line);
void add_doctor(CommandLine& line);
void add_env(CommandLine& line);
void add_completion(CommandLine& line);

}  // namespace accel::cli
