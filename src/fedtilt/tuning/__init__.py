"""Choose settings on validation data: axes, sampling, successive halving, and a recommendation that respects chance.

The modules: `axes` (what is varied), `objectives` (what is compared), `tuned_method` (the method and its candidates),
`plan` (who trains for how long), `sampler` (Optuna), `trial` (settings that train together), `training` (all settings
of a stage), `search` (all stages), `decision` (verdicts, Pareto front, recommendation), `result` and `tune`
(`ft.tune` and `fedtilt tune`).
"""
