// A device that sends beats on an AXI4-Stream port of the Verilated model, one behind the other.
#include <deque>

struct Beat {
    std::string data;  // hexadecimal
    uint32_t user, last;
};

// Bits of a port of any width, from a hexadecimal number. Verilator has words of 32 bits in ports of more than 64.
template <class Port> static void set(Port &port, const std::string &hex) {
    std::string text = hex.substr(hex.rfind("0x") == 0 ? 2 : 0);
    uint8_t *bytes = reinterpret_cast<uint8_t *>(&port);
    std::memset(bytes, 0, sizeof port);
    for (size_t i = 0; 2 * i < text.size() && i < sizeof port; i++) {
        size_t end = text.size() - 2 * i, from = end > 2 ? end - 2 : 0;
        bytes[i] = (uint8_t)std::stoul(text.substr(from, end - from), nullptr, 16);
    }
}
