// SPDX-License-Identifier: MIT
// printf and assert of device code.
#pragma once
