"""What a program is and how fast it goes: its phases' speed, its trainer's ranges, its model's layers."""
