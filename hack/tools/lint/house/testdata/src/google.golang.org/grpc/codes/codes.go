package codes
