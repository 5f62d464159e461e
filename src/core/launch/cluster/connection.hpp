#pragma once

#include <chrono>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/files/fd.hpp"

namespace accel::launch {

/// Messages to and from another launcher: JSON documents, one a line, over a socket that does not block.
class Connection {
 public:
  using Clock = std::chrono::steady_clock;

  /// The size of a message, which holds a configuration or a report, from a launcher of the run.
  static constexpr std::size_t kLongestMessage = 4 << 20;

  /// Takes a connected socket. A message of more than `longest` bytes closes the connection.
  explicit Connection(Fd socket, std::size_t longest = kLongestMessage);

  void set_longest_message(std::size_t bytes) { longest_ = bytes; }

  /// Queues a message; pump() writes it. Nothing is sent on a closed connection.
  void send(const nlohmann::json& message);
  /// Reads and writes what is ready. What the other side sends that is not JSON closes the connection.
  void pump();
  /// Writes what is queued, as far as that takes no longer than two seconds.
  void flush();
  /// The next message that has arrived.
  std::optional<nlohmann::json> next();
  void close() { socket_.reset(); }
  /// Counts the silence of the other side from now on.
  void reset_silence() { last_received_ = Clock::now(); }

  [[nodiscard]] bool is_open() const { return static_cast<bool>(socket_); }
  [[nodiscard]] int fd() const { return socket_.get(); }
  /// Whether it was closed because the other side sent what is not a message.
  [[nodiscard]] bool is_garbled() const { return is_garbled_; }
  [[nodiscard]] bool has_message() const { return in_.find('\n') != std::string::npos; }
  [[nodiscard]] bool wants_to_write() const { return is_open() && !out_.empty(); }
  /// When something last arrived.
  [[nodiscard]] Clock::time_point last_received() const { return last_received_; }

 private:
  Fd socket_;
  std::string in_;
  std::string out_;
  std::size_t longest_;
  bool is_garbled_ = false;
  Clock::time_point last_received_ = Clock::now();
};

/// The address of the other side as a number, such as "10.0.0.2", and that of this side.
[[nodiscard]] std::string peer_address(int socket);
[[nodiscard]] std::string own_address(int socket);

}  // namespace accel::launch
