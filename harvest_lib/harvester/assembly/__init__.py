"""The parts of a harvester, made from its configuration: checks of what they need, engines, elections, stores."""
