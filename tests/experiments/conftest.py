"""Pictures of the experiments are drawn in full, and small: their pixels are most of the time and nobody counts them."""

import matplotlib

matplotlib.rcParams["savefig.dpi"] = 50
