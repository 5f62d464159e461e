#include "conditions.hpp"

#include <fnmatch.h>

#include <algorithm>
#include <sstream>

std::string Conditions::command(const std::string& line) {
  std::istringstream words(line);
  std::string verb;
  std::string pattern;
  words >> verb;
  std::unique_lock lock(mutex_);
  if (verb == "await") {
    words >> pattern;
    changed_.wait(lock, [&] { return waiting_[pattern] != 0; });
    return "ok";
  }
  if (verb == "clear") {
    const bool is_all = !(words >> pattern);
    std::erase_if(rules_, [&](const Rule& rule) { return is_all || rule.pattern == pattern; });
    changed_.notify_all();
    return "ok";
  }
  Rule rule;
  if (verb == "fail") {
    words >> rule.error;
  } else if (verb != "stall") {
    return "unknown command: " + line;
  }
  words >> rule.pattern;
  for (std::string operation; words >> operation;) rule.operations.push_back(operation);
  if ((verb == "fail" && rule.error <= 0) || rule.operations.empty()) return "incomplete command: " + line;
  rules_.push_back(rule);
  return "ok";
}

int Conditions::error_of(const std::string& operation, const std::string& name) {
  std::unique_lock lock(mutex_);
  const Rule* rule = rule_of(operation, name);
  while (rule != nullptr && rule->error == 0) {
    const std::string pattern = rule->pattern;
    ++waiting_[pattern];
    changed_.notify_all();
    changed_.wait(lock, [&] {
      rule = rule_of(operation, name);
      return rule == nullptr || rule->error != 0 || rule->pattern != pattern;
    });
    --waiting_[pattern];
  }
  return rule == nullptr ? 0 : rule->error;
}

const Conditions::Rule* Conditions::rule_of(const std::string& operation, const std::string& name) const {
  for (const Rule& rule : rules_) {
    const bool is_named =
        std::any_of(rule.operations.begin(), rule.operations.end(),
                    [&](const std::string& one) { return one == "all" || one == operation; });
    if (is_named && ::fnmatch(rule.pattern.c_str(), name.c_str(), 0) == 0) return &rule;
  }
  return nullptr;
}
