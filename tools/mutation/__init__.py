"""Changes rules by small mistakes, and checks that a recorded case notices each."""
