// SPDX-License-Identifier: Apache-2.0
#include "sm90/ablation.h"

#include "sm90/forward_fields.h"

namespace strobe::sm90 {
namespace {

void take_every_ingredient(forward::Config& config) {
  config.consumer_warpgroups = 2;
  config.block_n = 128;
  config.stages = 2;
  config.q_stages = 2;
  config.ctas_per_sm = 1;
  config.ping_pong = true;
  config.loop = forward::Loop::pipelined;
  config = completed(config);
}

void go_one_after_another(forward::Config& config) {
  take_every_ingredient(config);
  config.loop = forward::Loop::serial;
}

void leave_out_turns(forward::Config& config) {
  take_every_ingredient(config);
  config.ping_pong = false;
}

}  // namespace

std::vector<AblationVariant> ablation_variants() {
  return {{"all, 128x128 tiles", take_every_ingredient},
          {"with a serial loop", go_one_after_another},
          {"without ping_pong", leave_out_turns}};
}

}  // namespace strobe::sm90
