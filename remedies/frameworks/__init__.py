"""Write a plan into the config file of a training framework."""
