"""Every line marked so must be an error: a check that takes anything would pass the other file too."""

from __future__ import annotations

import stagecraft as sc
import stagecraft.torch as st

sc.plan(sc.Costs(forward=1), ranks="four", microbatches=8)  # wrong
sc.Schedule.named("1F1B", ranks=2)  # wrong
text: int = sc.Schedule.named("1F1B", ranks=2, microbatches=4).to_csv()  # wrong
st.World(timeout="soon")  # wrong
st.Stage(None, 0)  # wrong
