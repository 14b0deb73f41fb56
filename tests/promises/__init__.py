"""What the library prints, against simulations of federations whose truth is known."""
