"""How a round is carried out: assignments, engines, client tables, schedules, traffic."""
