"""One thread per test process: grouped convolutions in float64 spend more time handing work over than doing it."""

import torch

torch.set_num_threads(1)
