#pragma once

#include <condition_variable>
#include <map>
#include <mutex>
#include <string>
#include <vector>

/// What is wrong with the file server at the moment. A test says it, and each operation asks.
class Conditions {
 public:
  /// Carries out a line of a test and returns the answer:
  ///   fail ERRNO PATTERN OPERATION...   these operations on files whose name matches fail with that number
  ///   stall PATTERN OPERATION...        they wait
  ///   clear PATTERN                     the rules with that very pattern are dropped, and what waits goes on
  ///   clear                             all rules are dropped
  ///   await PATTERN                     answers as soon as an operation waits for a rule with that very
  ///   pattern
  /// An operation has the name of the FUSE request; "all" stands for every one.
  std::string command(const std::string& line);

  /// Waits while a rule stalls `operation` on the file `name`. Returns the errno it has to fail with, or 0.
  int error_of(const std::string& operation, const std::string& name);

 private:
  struct Rule {
    int error = 0;  // 0: the operation waits.
    std::string pattern;
    std::vector<std::string> operations;
  };
  const Rule* rule_of(const std::string& operation, const std::string& name) const;

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Rule> rules_;
  std::map<std::string, int> waiting_;  // How many operations wait, by the pattern of the rule.
};
