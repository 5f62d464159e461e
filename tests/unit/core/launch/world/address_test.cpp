#include "core/launch/world/address.hpp"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <netinet/in.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/error.hpp"

namespace accel::launch {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::string error_of(const std::string& host, std::chrono::milliseconds limit = kLookupTime,
                     const Lookup& lookup = look_up) {
  try {
    check_own_address(host, limit, lookup);
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    return error.message();
  }
  return "no error";
}

Address address_of(const char* text) {
  Address address;
  auto& in = reinterpret_cast<sockaddr_in&>(address.storage);
  in.sin_family = AF_INET;
  ::inet_pton(AF_INET, text, &in.sin_addr);
  address.size = sizeof in;
  return address;
}

TEST(AddressTest, TheLoopbackIsThisMachines) {
  EXPECT_EQ(error_of("127.0.0.1"), "no error");
  EXPECT_EQ(error_of("localhost"), "no error");
}

// 192.0.2.0/24 is reserved for documentation (RFC 5737), so no machine has it.
TEST(AddressTest, AnotherMachinesAddressIsNamed) {
  EXPECT_THAT(error_of("192.0.2.1"),
              StartsWith("'192.0.2.1' does not lead to this machine, on which rank 0 runs: "));
  EXPECT_THAT(error_of("224.0.0.1"), HasSubstr("does not lead to this machine"));
}

TEST(AddressTest, ANameThatDoesNotExistSaysHowItFailed) {
  const auto nothing = [](const std::string&) -> std::vector<Address> {
    throw Error(ErrorKind::kUsage, "'nobody.invalid' cannot be resolved: Name or service not known");
  };
  EXPECT_THAT(error_of("nobody.invalid", 1s, nothing), HasSubstr("Name or service not known"));
  // A name of 300 characters is not a host name, so no name server is asked.
  EXPECT_THAT(error_of(std::string(300, 'a')), StartsWith("'aaa"));
}

TEST(AddressTest, OneOfSeveralAddressesIsEnough) {
  const auto both = [](const std::string&) {
    return std::vector<Address>{address_of("192.0.2.1"), address_of("127.0.0.1")};
  };
  EXPECT_EQ(error_of("node", 1s, both), "no error");
}

TEST(AddressTest, ANameServerThatDoesNotAnswerIsWaitedForUntilALimit) {
  const auto released = std::make_shared<std::atomic<bool>>(false);
  const auto slow = [released](const std::string&) {
    while (!*released) std::this_thread::sleep_for(1ms);
    return std::vector<Address>{};
  };
  EXPECT_EQ(error_of("slow", 50ms, slow), "'slow' is not resolved within 0.05 s");
  *released = true;
}

TEST(AddressTest, OneThreadAloneWaitsForAName) {
  const auto released = std::make_shared<std::atomic<bool>>(false);
  const auto calls = std::make_shared<std::atomic<int>>(0);
  const auto slow = [released, calls](const std::string&) {
    ++*calls;
    while (!*released) std::this_thread::sleep_for(1ms);
    return std::vector<Address>{address_of("127.0.0.1")};
  };
  for (int i = 0; i < 3; ++i)
    EXPECT_EQ(error_of("slower", 5ms, slow), "'slower' is not resolved within 0.005 s");
  while (*calls == 0) std::this_thread::sleep_for(1ms);
  EXPECT_EQ(*calls, 1);
  *released = true;
  // What it has found by now is taken, and afterwards the name is looked up again.
  EXPECT_EQ(error_of("slower", 10s, slow), "no error");
  EXPECT_EQ(*calls, 1);
  EXPECT_EQ(error_of("slower", 10s, slow), "no error");
  EXPECT_EQ(*calls, 2);
}

}  // namespace
}  // namespace accel::launch
