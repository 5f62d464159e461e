#include "core/launch/cluster/arrival_table.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace accel::launch {
namespace {

RendezvousParameters machine_0_of(int machines) {
  RendezvousParameters own;
  own.num_machines = machines;
  own.local_processes = 8;
  own.host = "node00";
  return own;
}

void add(Members& members, int first, int last, int ranks) {
  for (int machine = first; machine <= last; ++machine)
    members.emplace(machine, Member{Connection(Fd()), "node", "10.0.0.1", ranks, 1.25});
}

TEST(ArrivalTableTest, AFewMachinesHaveALineEach) {
  Members members;
  add(members, 2, 2, 4);
  EXPECT_EQ(arrival_table(machine_0_of(4), members),
            "  machine 0: node00, 8 ranks, this one\n"
            "  machine 1: has not arrived\n"
            "  machine 2: node at 10.0.0.1, 4 ranks, arrived after 1.2 s\n"
            "  machine 3: has not arrived");
}

TEST(ArrivalTableTest, NeighboursOfManyMachinesShareALine) {
  Members members;
  add(members, 1, 700, 8);
  add(members, 702, 900, 8);
  add(members, 901, 901, 4);
  EXPECT_EQ(arrival_table(machine_0_of(1024), members),
            "  machine 0: node00, 8 ranks, this one\n"
            "  machines 1 to 700: arrived, 8 ranks each\n"
            "  machine 701: has not arrived\n"
            "  machines 702 to 900: arrived, 8 ranks each\n"
            "  machine 901: arrived, 4 ranks\n"
            "  machines 902 to 1023: have not arrived");
}

TEST(ArrivalTableTest, TheTextOfManyMachinesIsShort) {
  Members members;
  for (int machine = 1; machine < 16'384; machine += 2) add(members, machine, machine, 8);
  const std::string text = arrival_table(machine_0_of(16'384), members);
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 33);
  EXPECT_TRUE(text.ends_with("\n  machines 33 to 16383: 8175 have not arrived")) << text;
}

}  // namespace
}  // namespace accel::launch
