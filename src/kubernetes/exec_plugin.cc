#include "kubernetes/exec_plugin.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "base/strings.h"
#include "kubernetes/json.h"
#include "kubernetes/timestamps.h"

extern char** environ;

namespace penstock::kubernetes {

namespace {

constexpr size_t kMaxOutputBytes = 1 << 20;
constexpr size_t kMaxComplaintBytes = 1024;

// A pipe of which the child gets the writing end.
struct Pipe {
  Pipe() {
    std::array<int, 2> ends{-1, -1};
    if (pipe2(ends.data(), O_CLOEXEC) == 0) {
      reading = ends[0];
      writing = ends[1];
    }
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close_end(reading);
    close_end(writing);
  }
  static void close_end(int& fd) {
    if (fd >= 0) close(std::exchange(fd, -1));
  }
  int reading = -1;
  int writing = -1;
};

std::vector<std::string> environment_of(const ExecPlugin& plugin) {
  std::vector<std::string> out;
  for (char** variable = environ; *variable != nullptr; ++variable) out.emplace_back(*variable);
  for (const auto& [name, value] : plugin.environment) out.push_back(name + "=" + value);
  const std::string cluster = plugin.cluster_info.empty() ? "" : "\"cluster\":" + plugin.cluster_info + ",";
  out.push_back(fmt::format(
      R"(KUBERNETES_EXEC_INFO={{"apiVersion":{},"kind":"ExecCredential","spec":{{{}"interactive":false}}}})",
      json_quote(plugin.api_version), cluster));
  // Of a name given twice the last one counts.
  std::vector<std::string> kept;
  for (size_t i = 0; i < out.size(); ++i) {
    const std::string_view name = std::string_view(out[i]).substr(0, out[i].find('=') + 1);
    const bool again = std::any_of(out.begin() + static_cast<std::ptrdiff_t>(i) + 1, out.end(),
                                   [&](const std::string& later) { return later.starts_with(name); });
    if (!again) kept.push_back(out[i]);
  }
  return kept;
}

std::vector<char*> pointers_to(std::vector<std::string>& texts) {
  std::vector<char*> out;
  for (std::string& text : texts) out.push_back(text.data());
  out.push_back(nullptr);
  return out;
}

// 0 or an errno.
int spawn_child(const ExecPlugin& plugin, const Pipe& out, const Pipe& complaints, pid_t& pid) {
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, out.writing, STDOUT_FILENO);
  posix_spawn_file_actions_adddup2(&actions, complaints.writing, STDERR_FILENO);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  posix_spawnattr_setsigmask(&attributes, &none);
  // A group of its own, so that what it starts can be ended with it.
  posix_spawnattr_setpgroup(&attributes, 0);
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
  std::vector<std::string> arguments = plugin.arguments;
  arguments.insert(arguments.begin(), plugin.command);
  std::vector<std::string> environment = environment_of(plugin);
  const int failed = posix_spawnp(&pid, plugin.command.c_str(), &actions, &attributes,
                                  pointers_to(arguments).data(), pointers_to(environment).data());
  posix_spawnattr_destroy(&attributes);
  posix_spawn_file_actions_destroy(&actions);
  return failed;
}

struct Output {
  std::string text;
  std::string complaint;
  bool timed_out = false;
  bool too_long = false;
};

// Until both pipes are closed, the deadline, or too much output.
Output read_output(Pipe& out, Pipe& complaints, TimePoint deadline) {
  Output result;
  const SystemClock clock;
  std::array<char, 4096> buffer;
  while (out.reading >= 0 || complaints.reading >= 0) {
    const Duration left = deadline - clock.now();
    if (left <= Duration::zero()) {
      result.timed_out = true;
      break;
    }
    std::array<pollfd, 2> fds{{{out.reading, POLLIN, 0}, {complaints.reading, POLLIN, 0}}};
    const auto wait = std::chrono::duration_cast<std::chrono::milliseconds>(left).count() + 1;
    if (poll(fds.data(), fds.size(), static_cast<int>(std::min<int64_t>(wait, 1000))) < 0 && errno != EINTR)
      break;
    for (size_t i = 0; i < fds.size(); ++i) {
      if (fds[i].fd < 0 || fds[i].revents == 0) continue;
      const ssize_t n = read(fds[i].fd, buffer.data(), buffer.size());
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) {
        Pipe::close_end(i == 0 ? out.reading : complaints.reading);
        continue;
      }
      std::string& to = i == 0 ? result.text : result.complaint;
      const size_t limit = i == 0 ? kMaxOutputBytes : kMaxComplaintBytes;
      const size_t room = limit - std::min(limit, to.size());
      to.append(buffer.data(), std::min(room, static_cast<size_t>(n)));
      if (i == 0 && room < static_cast<size_t>(n)) {
        result.too_long = true;
        return result;
      }
    }
  }
  return result;
}

// Its status; nothing when it has not ended by the deadline.
std::optional<int> wait_until(pid_t pid, TimePoint deadline) {
  const SystemClock clock;
  for (auto pause = std::chrono::milliseconds(1);;
       pause = std::min(pause * 2, std::chrono::milliseconds(50))) {
    int status = 0;
    const pid_t ended = waitpid(pid, &status, WNOHANG);
    if (ended == pid || (ended < 0 && errno != EINTR)) return status;
    if (clock.now() >= deadline) return std::nullopt;
    std::this_thread::sleep_for(pause);
  }
}

void end_group(pid_t pid) {
  kill(-pid, SIGKILL);
  int status = 0;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
}

}  // namespace

Result<ExecCredential> parse_exec_credential(std::string_view text) {
  JsonDocument document;
  const Result<Json> json = document.parse(text);
  if (!json.ok()) return json.error().wrap("exec plugin: what it printed is no JSON");
  if ((*json)["kind"].text() != "ExecCredential")
    return Error{ErrorCode::kUnauthorized, "exec plugin: it printed no ExecCredential"};
  const Json status = (*json)["status"];
  ExecCredential out;
  out.token = status["token"].text();
  out.certificate_pem = status["clientCertificateData"].text();
  out.key_pem = status["clientKeyData"].text();
  if (out.certificate_pem.empty() != out.key_pem.empty())
    return Error{ErrorCode::kUnauthorized, "exec plugin: a client certificate and its key belong together"};
  if (out.token.empty() && out.certificate_pem.empty())
    return Error{ErrorCode::kUnauthorized, "exec plugin: it printed neither token nor client certificate"};
  if (out.token.find_first_of("\r\n") != std::string::npos)
    return Error{ErrorCode::kUnauthorized, "exec plugin: a line end in the token"};
  if (const std::string_view expires = status["expirationTimestamp"].text(); !expires.empty()) {
    out.expires = parse_time(expires);
    if (!out.expires)
      return Error{ErrorCode::kUnauthorized,
                   fmt::format("exec plugin: expirationTimestamp \"{}\" is no time", expires)};
  }
  return out;
}

Result<ExecCredential> run_exec_plugin(const ExecPlugin& plugin, Duration timeout) {
  const auto failed = [&](std::string_view why) {
    return Error{ErrorCode::kUnauthorized, fmt::format("exec plugin {}: {}", plugin.command, why)};
  };
  Pipe out;
  Pipe complaints;
  if (out.reading < 0 || complaints.reading < 0) return failed(std::strerror(errno));
  pid_t pid = -1;
  if (const int error = spawn_child(plugin, out, complaints, pid); error != 0) {
    const std::string hint = plugin.install_hint.empty() ? "" : ": " + plugin.install_hint;
    return failed(std::strerror(error) + hint);
  }
  Pipe::close_end(out.writing);
  Pipe::close_end(complaints.writing);
  const TimePoint deadline = SystemClock().now() + timeout;
  const Output output = read_output(out, complaints, deadline);
  // It may have closed both and run on.
  std::optional<int> status;
  if (!output.timed_out && !output.too_long) status = wait_until(pid, deadline);
  if (!status) {
    end_group(pid);
    return failed(output.too_long ? "it printed too much" : "it did not end in time");
  }
  if (!WIFEXITED(*status) || WEXITSTATUS(*status) != 0) {
    return failed(fmt::format("it ended with {}: {}", WIFEXITED(*status) ? WEXITSTATUS(*status) : -1,
                              trim(output.complaint)));
  }
  return parse_exec_credential(output.text);
}

}  // namespace penstock::kubernetes
