"""What the library promises of its intervals and verdicts, counted in simulations."""
