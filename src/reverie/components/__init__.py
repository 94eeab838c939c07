"""The mathematics: networks, representation learners, controllers, return computers."""
