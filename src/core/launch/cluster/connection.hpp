#pragma once

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "base/files/fd.hpp"

namespace accel::launch {

/// The socket of a connection and what is to be sent on it. A thread may send heartbeats while another one
/// uses the connection.
class Outgoing {
 public:
  explicit Outgoing(Fd socket) : socket_(std::move(socket)) {}

  /// The socket; -1 once it is closed. Only the thread that closes it may call this.
  [[nodiscard]] int fd() const { return socket_.get(); }
  void close();
  void queue(const nlohmann::json& message);
  /// Until this is called, the connection ends if the other side's kernel confirms nothing for a minute. Then
  /// launch.heartbeat_timeout decides.
  void leave_losses_to_heartbeats() const;
  /// Writes what the socket takes.
  void pump();
  [[nodiscard]] bool is_empty() const;

  /// Sends the message, from any thread. If other messages wait, it tries to write those instead, which show
  /// as well that this side is there.
  void beat(const nlohmann::json& message);

 private:
  void append(const nlohmann::json& message);
  void write();

  mutable std::mutex mutex_;  ///< Guards text_, and keeps socket_ open while it is in use.
  Fd socket_;
  std::string text_;
};

/// Messages to and from another launcher: JSON documents, one a line, over a socket that does not block.
class Connection {
 public:
  using Clock = std::chrono::steady_clock;
  using Now = std::function<Clock::time_point()>;

  /// The size of a message, which holds a configuration or a report, from a launcher of the run.
  static constexpr std::size_t kLongestMessage = 4 << 20;

  /// Takes a connected socket. A message of more than `longest` bytes closes the connection. `now` is the
  /// time by which silence is counted; tests move it.
  explicit Connection(Fd socket, std::size_t longest = kLongestMessage, Now now = Clock::now);

  void set_longest_message(std::size_t bytes) { longest_ = bytes; }

  /// Queues a message; pump() writes it. Nothing is sent on a closed connection.
  void send(const nlohmann::json& message);
  /// Reads and writes what is ready. What the other side sends that is not JSON closes the connection.
  void pump();
  /// Writes what is queued, as far as that takes no longer than two seconds.
  void flush();
  /// The next message that has arrived.
  std::optional<nlohmann::json> next();
  void close();
  /// Counts the silence of the other side from now on.
  void reset_silence() { last_received_ = now_(); }

  [[nodiscard]] bool is_open() const { return fd() >= 0; }
  [[nodiscard]] int fd() const { return out_ == nullptr ? -1 : out_->fd(); }
  /// What a thread may send heartbeats on.
  [[nodiscard]] const std::shared_ptr<Outgoing>& outgoing() const { return out_; }
  /// Whether it was closed because the other side sent what is not a message.
  [[nodiscard]] bool is_garbled() const { return is_garbled_; }
  [[nodiscard]] bool has_message() const { return in_.find('\n') != std::string::npos; }
  [[nodiscard]] bool wants_to_write() const { return is_open() && !out_->is_empty(); }
  /// Whether the other side's kernel does not have all messages yet. If this side closes before that,
  /// heartbeats that it has not read may make its kernel drop the rest of them.
  [[nodiscard]] bool has_undelivered() const;
  /// The time since something last arrived, or since reset_silence().
  [[nodiscard]] Clock::duration silence() const { return now_() - last_received_; }

 private:
  std::shared_ptr<Outgoing> out_;
  std::string in_;
  std::size_t longest_;
  bool is_garbled_ = false;
  Now now_;
  Clock::time_point last_received_ = now_();
};

/// The address of the other side as a number, such as "10.0.0.2", and that of this side.
[[nodiscard]] std::string peer_address(int socket);
[[nodiscard]] std::string own_address(int socket);

}  // namespace accel::launch
