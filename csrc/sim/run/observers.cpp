// SPDX-License-Identifier: MIT
// Several observers of one launch or workgroup as one. Each sees the lanes that the ones before it let go on.
#include "run/observers.h"

#include <algorithm>
#include <mutex>
#include <utility>
#include <vector>

#include "checks/checks.h"

namespace sim {
namespace {

class Several final : public Observer {
 public:
  explicit Several(std::vector<std::unique_ptr<Observer>> all) : all_(std::move(all)) {}

  void before(Wave& w, const Inst& i) override {
    for (auto& o : all_) o->before(w, i);
  }
  void after(Wave& w, const Inst& i) override {
    for (auto& o : all_) o->after(w, i);
  }
  void barrier() override {
    for (auto& o : all_) o->barrier();
  }
  void failed(Wave& w, const char* why) override {
    for (auto& o : all_) o->failed(w, why);
  }
  u64 global(Wave& w, const Inst& i, const u64* address, u64 lanes, const Touch& touch) override {
    for (auto& o : all_) lanes = o->global(w, i, address, lanes, touch);
    return lanes;
  }
  u64 lds(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) override {
    for (auto& o : all_) lanes = o->lds(w, i, offset, lanes, touch);
    return lanes;
  }
  u64 scratch(Wave& w, const Inst& i, const u32* offset, u64 lanes, const Touch& touch) override {
    for (auto& o : all_) lanes = o->scratch(w, i, offset, lanes, touch);
    return lanes;
  }
  bool scalar(Wave& w, const Inst& i, u64 address, u32 bytes) override {
    return std::all_of(all_.begin(), all_.end(), [&](auto& o) { return o->scalar(w, i, address, bytes); });
  }
  void unrounded_address(Wave& w, const Inst& i, u64 address) override {
    for (auto& o : all_) o->unrounded_address(w, i, address);
  }
  void out_of_range(Wave& w, const Touch& touch, u64 lanes) override {
    for (auto& o : all_) o->out_of_range(w, touch, lanes);
  }
  void disputed_range(Wave& w, const Inst& i, u64 lanes) override {
    for (auto& o : all_) o->disputed_range(w, i, lanes);
  }
  void shuffle(Wave& w, u16 result, u16 data, const i8* from, u64 exec) override {
    for (auto& o : all_) o->shuffle(w, result, data, from, exec);
  }

 private:
  std::vector<std::unique_ptr<Observer>> all_;
};

class SeveralOfLaunch final : public LaunchObserver {
 public:
  explicit SeveralOfLaunch(std::vector<std::unique_ptr<LaunchObserver>> all) : all_(std::move(all)) {}

  std::unique_ptr<Observer> begin(Workgroup& group) override {
    std::vector<std::unique_ptr<Observer>> watching;
    for (auto& o : all_) {
      if (std::unique_ptr<Observer> one = o->begin(group)) watching.push_back(std::move(one));
    }
    if (watching.size() > 1) return std::make_unique<Several>(std::move(watching));
    return watching.empty() ? nullptr : std::move(watching.front());
  }
  bool skips(u64 number) override {
    return std::any_of(all_.begin(), all_.end(), [&](auto& o) { return o->skips(number); });
  }
  bool needs_one_thread() const override {
    return std::any_of(all_.begin(), all_.end(), [](auto& o) { return o->needs_one_thread(); });
  }

 private:
  std::vector<std::unique_ptr<LaunchObserver>> all_;
};

struct Makers {
  std::mutex mutex;
  std::vector<MakeObserver> list;
};

Makers& makers() {
  static Makers* instance = new Makers;        // never destroyed: libraries remove their observers at exit
  return *instance;
}

}  // namespace

void add_observer(MakeObserver make) {
  const std::lock_guard lock(makers().mutex);
  makers().list.push_back(make);
}

void remove_observer(MakeObserver make) {
  const std::lock_guard lock(makers().mutex);
  std::erase(makers().list, make);
}

std::unique_ptr<LaunchObserver> observers_of(const Launch& launch, u32 checks) {
  std::vector<std::unique_ptr<LaunchObserver>> all;
  if (checks) all.push_back(make_checkers(launch, checks));
  {
    const std::lock_guard lock(makers().mutex);
    for (MakeObserver make : makers().list) {
      if (LaunchObserver* one = make(launch)) all.emplace_back(one);
    }
  }
  if (all.size() > 1) return std::make_unique<SeveralOfLaunch>(std::move(all));
  return all.empty() ? nullptr : std::move(all.front());
}

}  // namespace sim
