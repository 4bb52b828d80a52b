// SPDX-License-Identifier: Apache-2.0
#include "bench/torch_runner.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <nlohmann/json.hpp>

#include "bench/torch_runner_script.h"

extern char** environ;  // NOLINT(readability-redundant-declaration): POSIX leaves it to the program to declare

namespace strobe::bench {
namespace {

Status failure(const std::string& reason) { return {StatusCode::unsupported, reason}; }

/// Starts `python -c script` with `socket` as its standard input and output. Returns 0 or an errno.
int spawn(const std::string& python, int socket, pid_t& process) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_adddup2(&actions, socket, STDIN_FILENO);
  posix_spawn_file_actions_adddup2(&actions, socket, STDOUT_FILENO);
  posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);  // torch warns at import
  std::array<std::string, 3> words{python, "-c", kTorchRunnerScript};
  std::array<char*, 4> arguments{words[0].data(), words[1].data(), words[2].data(), nullptr};
  posix_spawnattr_t attributes;  // a process group of its own: Ctrl-C is for the benchmark, which ends its peers
  posix_spawnattr_init(&attributes);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP);
  const int error = posix_spawnp(&process, python.c_str(), &actions, &attributes, arguments.data(), environ);
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return error;
}

/// The reply's `key`, or the message under "error".
Result<nlohmann::json> value_of(const Result<std::string>& line, const char* key) {
  if (!line.ok()) return line.status();
  const nlohmann::json reply = nlohmann::json::parse(*line, nullptr, /*allow_exceptions=*/false);
  if (reply.is_object() && reply.contains(key)) return reply[key];
  if (reply.is_object() && reply.contains("error")) return failure(reply["error"].get<std::string>());
  return failure(fmt::format("the PyTorch process answered '{}'", *line));
}

}  // namespace

Result<TorchRunner> TorchRunner::start(const std::string& python) {
  std::array<int, 2> sockets{};
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets.data()) != 0) {
    return failure(fmt::format("cannot talk to '{}': {}", python, std::strerror(errno)));
  }
  pid_t process = -1;
  const int error = spawn(python, sockets[1], process);
  ::close(sockets[1]);
  if (error != 0) {
    ::close(sockets[0]);
    return failure(fmt::format("cannot start '{}': {}", python, std::strerror(error)));
  }
  TorchRunner runner(process, sockets[0]);
  const Result<nlohmann::json> version = value_of(runner.receive_line(), "version");
  if (!version.ok()) return failure(fmt::format("'{}' cannot import torch: {}", python, version.status().message()));
  runner.version_ = version->get<std::string>();
  return runner;
}

TorchRunner::~TorchRunner() {
  if (socket_ >= 0) ::close(socket_);  // the script's loop over its standard input ends
  if (process_ > 0) ::waitpid(process_, nullptr, 0);
}

Status TorchRunner::send_line(std::string line) {
  line += '\n';
  std::size_t sent = 0;
  while (sent < line.size()) {
    const ssize_t bytes = ::send(socket_, line.data() + sent, line.size() - sent, MSG_NOSIGNAL);
    if (bytes < 0) return failure(fmt::format("the PyTorch process is gone: {}", std::strerror(errno)));
    sent += static_cast<std::size_t>(bytes);
  }
  return {};
}

Result<std::string> TorchRunner::receive_line() {
  std::size_t end = received_.find('\n');
  while (end == std::string::npos) {
    std::array<char, 4096> chunk{};
    const ssize_t bytes = ::recv(socket_, chunk.data(), chunk.size(), 0);
    if (bytes <= 0) return failure("the PyTorch process ended without an answer");
    received_.append(chunk.data(), static_cast<std::size_t>(bytes));
    end = received_.find('\n');
  }
  std::string line = received_.substr(0, end);
  received_.erase(0, end + 1);
  return line;
}

Status TorchRunner::prepare(const Cell& cell, const TorchImplementation& implementation) {
  const bool on_cpu = implementation.device.type == DeviceType::cpu;
  const nlohmann::json request = {{"prepare",
                                   {{"implementation", implementation.name},
                                    {"device", on_cpu ? "cpu" : fmt::format("cuda:{}", implementation.device.index)},
                                    {"launches", implementation.launches},
                                    {"pass", name_of(cell.pass)},
                                    {"dtype", strobe::name_of(cell.dtype)},
                                    {"batch", cell.batch},
                                    {"seqlen", cell.seqlen},
                                    {"seqlen_k", cell.seqlen_k},
                                    {"heads", cell.heads},
                                    {"heads_kv", cell.heads_kv},
                                    {"head_dim", cell.head_dim},
                                    {"head_dim_v", cell.head_dim_v},
                                    {"causal", cell.causal},
                                    {"threads", cell.threads}}}};
  if (Status status = send_line(request.dump()); !status.ok()) return status;
  return value_of(receive_line(), "ready").status();
}

Result<double> TorchRunner::run(const std::string& implementation) {
  const nlohmann::json request = {{"run", implementation}};
  if (Status status = send_line(request.dump()); !status.ok()) return status;
  const Result<nlohmann::json> milliseconds = value_of(receive_line(), "milliseconds");
  if (!milliseconds.ok()) return milliseconds.status();
  return milliseconds->get<double>();
}

}  // namespace strobe::bench
