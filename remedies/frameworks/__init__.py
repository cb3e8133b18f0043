"""The settings of a plan, written into the config file of the framework that the user trains with."""
