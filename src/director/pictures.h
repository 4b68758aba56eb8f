#pragma once

#include "director/director.h"
#include "discovery/registry.h"
#include "signals/signal_table.h"

namespace penstock::director {

// The picture of a pool from its registry and its signal table. One loop's.
class TablePictures final : public PictureSource {
 public:
  TablePictures(const discovery::Pool& members, signals::SignalTable& signals, Duration freshness_budget)
      : members_(members), frames_(signals, freshness_budget) {}
  const Picture& refresh(TimePoint now) override {
    const std::shared_ptr<const PoolSnapshot>& pool = members_.get();
    if (picture_.pool != pool) picture_.pool = pool;
    frames_.refresh(*pool, view_, now);
    picture_.signals = &view_;
    return picture_;
  }

 private:
  discovery::PoolReader members_;
  signals::FrameReader frames_;
  SignalView view_;
  Picture picture_;
};

}  // namespace penstock::director
