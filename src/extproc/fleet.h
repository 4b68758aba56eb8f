#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "assembly/foundation.h"
#include "base/clock.h"
#include "base/result.h"
#include "config/manifests.h"
#include "config/settings.h"
#include "discovery/kubernetes_discovery.h"
#include "extproc/door.h"
#include "extproc/health.h"
#include "io/http_server.h"
#include "telemetry/metrics.h"

namespace penstock::extproc {

// The families of a picker of several pools. Thread-safe.
struct FleetMetrics {
  explicit FleetMetrics(telemetry::MetricRegistry& registry);

  telemetry::Family<telemetry::Gauge>& pools;           // state
  telemetry::Family<telemetry::Counter>& config_loads;  // inference_pool, result
  telemetry::Family<telemetry::Gauge>& config_current;  // inference_pool
};

struct FleetOptions {
  config::PoolSettings
      pool;  // of each, but for name and namespace, and the configuration of those with their own
  // How long a pool that was deleted, or is selected no longer, serves on with what it said last.
  Duration linger = std::chrono::minutes(5);
  // Ports that pools may have for themselves: that of an endpointPickerRef which lies in them is listened on.
  // 0: none.
  uint16_t first_port = 0;
  uint16_t last_port = 0;
  // How often it is looked whether a pool may go, and tried to listen on a port that was not to be had.
  Duration look = std::chrono::milliseconds(100);
};

// The pools of a picker of several: makes, changes and ends them as the cluster tells, on a thread of its
// own. Each has its own policy, rules, endpoints and metrics.
//
//   told of           waits for its configuration, where it names one; then is made, and serves
//   changed           takes what changed; of a configuration that can't be used the last good one holds
//   deleted           serves on for `linger`; comes back as if nothing had been
//   gone              takes no new streams; ends with the last of those it has. Until then, when it is there
//                     again, it is the same pool with what it has learnt
// A pool whose first configuration can't be used does not serve until it can: as a process that has one pool
// does not start then.
class Fleet final : public discovery::PoolListener {
 public:
  // Listens at a port of one pool; nullptr: ports have no effect.
  using OpenPort = std::function<Result<std::unique_ptr<io::HttpServer>>(uint16_t port)>;

  // `changed`: health has to be looked at again; from the fleet's thread, with base.changes held. All outlive
  // it.
  Fleet(assembly::Foundation& base, Door& door, FleetOptions options, OpenPort open_port,
        std::function<void()> changed);
  ~Fleet() override;  // stop()
  Fleet(const Fleet&) = delete;
  Fleet& operator=(const Fleet&) = delete;

  // The loops run, and the cluster has started or will.
  void start(discovery::KubernetesDiscovery& cluster);
  // Nothing changes any more; pools serve on. Before the cluster ends.
  void stop();
  // New settings of every pool, and files again. The first failure; those pools keep their state.
  // REQUIRES: base.changes is held.
  Status reload(config::PoolSettings settings);

  // --- any thread ---
  // Every pool that there was at first serves with its pods known, or is known not to.
  bool settled() const;
  // Of each pool, by id, what its own health is made of; draining and leader are the process's.
  std::map<std::string, HealthInputs> health() const;
  // [{"pool","config","state","error"}]
  std::string configurations_json() const;

  // --- discovery::PoolListener; from the cluster's thread ---
  void pool_changed(const std::string& id, const config::InferencePool* pool) override;
  void rules_changed(const config::Manifests& rules) override;
  void state_changed() override;
  void pools_listed() override;
  void config_changed(const std::string& id, const discovery::PoolConfig& config) override;

 private:
  struct Member;
  using Job = std::function<void()>;

  void post(Job job);
  void work();
  bool look_after();  // true: something is under way
  bool left(Member& member);
  std::shared_ptr<Member> member_of(const std::string& id);
  void update(Member& member);
  Status make(Member& member);
  void admit(Member& member);
  Result<assembly::PoolSpec> spec_of(const Member& member) const;
  void configured(Member& member, Status status);
  void name_pools();
  void take_away(Member& member);
  void count();
  void open_ports();

  assembly::Foundation& base_;
  Door& door_;
  FleetOptions options_;
  const OpenPort open_port_;
  const std::function<void()> changed_;
  FleetMetrics metrics_;
  discovery::KubernetesDiscovery* cluster_ = nullptr;

  std::mutex queue_mutex_;
  std::condition_variable wake_;
  std::deque<Job> queue_;
  bool state_posted_ = false;
  bool stopping_ = false;
  std::thread thread_;

  // Of the thread.
  config::Manifests rules_;
  bool listed_ = false;
  std::vector<std::shared_ptr<Member>> leaving_;  // gone, with streams that have not ended
  std::map<uint16_t, std::unique_ptr<io::HttpServer>> ports_;
  std::set<uint16_t> missing_ports_;  // that can't be listened on
  std::vector<std::unique_ptr<io::HttpServer>> closing_;

  mutable std::mutex mutex_;  // of what follows and of what members say of themselves
  std::map<std::string, std::shared_ptr<Member>, std::less<>> members_;
  bool settled_ = false;
};

}  // namespace penstock::extproc
