// SPDX-License-Identifier: MIT
// What device.cpp tells the other files about the devices.
#pragma once
#include "hip/hip.h"

namespace sim::hip {

int num_devices();
std::string uuid_of(int device);                 // 16 characters, as AMD's runtime writes a unique ID
u32 pci_bus_of(int device);                      // each device is the only one on its bus
void forget_peers(int device);                   // whose memory it has access to: nobody's from now on

}  // namespace sim::hip
