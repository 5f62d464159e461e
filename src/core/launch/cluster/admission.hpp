#pragma once

#include <string>

#include "core/launch/cluster/rendezvous.hpp"

namespace accel::launch {

/// Why a launcher cannot become a member.
struct Problem {
  /// The problem for the log of machine 0, with the settings of machine 0; empty if there is no problem.
  std::string text;
  /// The problem for other machines, whose launchers may not have proved who they are.
  std::string told;

  [[nodiscard]] explicit operator bool() const { return !text.empty(); }
};

/// Compares what a launcher brings, `theirs`, with what machine 0 has. At a restart it must have as many
/// ranks as before. Without a secret `told` has the names of settings that differ, and no values of
/// machine 0.
[[nodiscard]] Problem admission_problem(const RendezvousParameters& own, const Members& members,
                                        const RendezvousParameters& theirs, bool is_restart);

/// "machine 1 (node02)".
[[nodiscard]] std::string name_of_machine(int machine, const std::string& host);

}  // namespace accel::launch
