"""Pictures of the experiments are drawn in full, and small: their pixels take most of the time."""

import matplotlib

matplotlib.rcParams["savefig.dpi"] = 50
