#include "core/launch/cluster/rendezvous_messages.hpp"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.hpp"

namespace accel::launch {
namespace {

using nlohmann::json;

/// A follower with 2 of 8 ranks, machine 2 of 4, in a run that two machines can go on with.
RendezvousParameters follower() {
  RendezvousParameters parameters;
  parameters.machine_rank = 2;
  parameters.num_machines = 4;
  parameters.num_processes = 8;
  parameters.local_processes = 2;
  parameters.min_machines = 2;
  return parameters;
}

json all_machines() { return to_json(Welcome{2, 4, 8, 4, 29501, 0, 0, "accel-1", "", false}); }
json three_machines() {
  return to_json(Welcome{1, 3, 6, 2, 29501, 3, 1, "accel-1", "/out/checkpoint_4", false});
}

std::string problem_with(json welcome, const char* name, const json& value) {
  welcome[name] = value;
  try {
    static_cast<void>(welcome_from_json(welcome, follower()));
    return "";
  } catch (const Error& error) {
    return error.message();
  }
}

TEST(RendezvousMessagesTest, AWelcomeIsReadAsItWasWritten) {
  for (const json& welcome : {all_machines(), three_machines()})
    EXPECT_EQ(to_json(welcome_from_json(welcome, follower())), welcome);
}

TEST(RendezvousMessagesTest, EveryNumberOfAWelcomeIsChecked) {
  const struct {
    const char* name;
    std::vector<json> wrong;
  } cases[] = {
      {"machine_rank", {-1, 0, 1, 3, 4, "2", 2.0, 4294967298}},
      {"num_machines", {-4, 0, 1, 5, 1e300, nullptr}},
      {"num_processes", {-8, 0, 7, 9, 4294967304, 18446744073709551615U}},
      {"first_rank", {-1, 0, 1, 6, 7, 8}},
      {"master_port", {-1, 0, 65536}},
      {"attempt", {-1, 4294967296}},
      {"restarts", {-1, "1"}},
      {"run_id", {1, nullptr, std::string(5000, 'x')}},
      {"resume_from", {1}},
      {"is_finished", {0, "no"}},
  };
  for (const auto& [name, wrong] : cases) {
    for (const json& value : wrong)
      EXPECT_THAT(problem_with(all_machines(), name, value), ::testing::HasSubstr(name)) << value;
    json without = all_machines();
    without.erase(name);
    EXPECT_THROW(static_cast<void>(welcome_from_json(without, follower())), Error) << name;
  }
}

TEST(RendezvousMessagesTest, FewerMachinesHaveFewerRanks) {
  EXPECT_EQ(problem_with(three_machines(), "machine_rank", 3), "'machine_rank' is 3, and 1 to 2 is expected");
  EXPECT_EQ(problem_with(three_machines(), "num_processes", 3),
            "'num_processes' is 3, and 4 to 8 is expected");
  // A machine is behind this one.
  EXPECT_EQ(problem_with(three_machines(), "first_rank", 4), "'first_rank' is 4, and 1 to 3 is expected");
}

TEST(RendezvousMessagesTest, AJoinHasTheRanksAndSettings) {
  RendezvousParameters parameters = follower();
  parameters.settings = {{"training.seed", "1"}};
  parameters.argument_hashes = {18446744073709551615U};
  const json join = join_to_json(parameters);
  EXPECT_EQ(join_to_json(join_from_json(join)), join);
  for (const auto& [name, value] : std::map<std::string, json>{{"machine_rank", -1},
                                                               {"local_processes", 0},
                                                               {"settings", json::array()},
                                                               {"argument_hashes", {-1.5}}}) {
    json wrong = join;
    wrong[name] = value;
    if (name != "argument_hashes") {
      EXPECT_THROW(static_cast<void>(join_from_json(wrong)), Error) << name;
    }
    wrong.erase(name);
    EXPECT_THROW(static_cast<void>(join_from_json(wrong)), Error) << name;
  }
  EXPECT_THROW(static_cast<void>(join_from_json(json())), Error);
}

TEST(RendezvousMessagesTest, AHelloIsFiveTexts) {
  const Hello hello{"0.1.0", "job", "node", "nonce", "proof"};
  EXPECT_EQ(to_json(hello_from_json(to_json(hello))), to_json(hello));
  json wrong = to_json(hello);
  wrong["host"] = std::string(2000, 'x');
  EXPECT_THROW(static_cast<void>(hello_from_json(wrong)), Error);
  wrong["host"] = 1;
  EXPECT_THROW(static_cast<void>(hello_from_json(wrong)), Error);
}

}  // namespace
}  // namespace accel::launch
