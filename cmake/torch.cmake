# LibTorch: the one that CMAKE_PREFIX_PATH names, or the torch wheel in .venv. Without any, only the torch-free half is
# built.
include(${CMAKE_CURRENT_LIST_DIR}/cuda_of_torch.cmake)
option(STAGECRAFT_TORCH "Build the half that trains, where LibTorch is found" ON)

set(STAGECRAFT_HAS_TORCH OFF)
set(STAGECRAFT_HAS_CUDA OFF)  # whether LibTorch was built with it, and what it takes is here
if(STAGECRAFT_TORCH)
  file(GLOB wheel ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch/share/cmake/Torch)
  stagecraft_folder_of_torch(folder ${wheel})
  stagecraft_cuda_of_torch("${folder}" STAGECRAFT_CUDA_OF_WHEELS)
  set(before ${CMAKE_MESSAGE_LOG_LEVEL})
  set(CMAKE_MESSAGE_LOG_LEVEL ERROR)  # it warns of libraries that nothing here needs
  find_package(Torch QUIET)
  if(NOT Torch_FOUND)
    find_package(Torch QUIET PATHS ${wheel} NO_DEFAULT_PATH)
  endif()
  set(CMAKE_MESSAGE_LOG_LEVEL ${before})
  if(Torch_FOUND AND Torch_VERSION AND Torch_VERSION VERSION_LESS 2.11)
    message(FATAL_ERROR "LibTorch ${Torch_VERSION} in ${TORCH_INSTALL_PREFIX} is too old: Stagecraft needs 2.11 or later. Give another by "
                        "-DTorch_DIR=<LibTorch>/share/cmake/Torch, or build without it by -DSTAGECRAFT_TORCH=OFF")
  endif()
  if(Torch_FOUND)
    set(STAGECRAFT_HAS_TORCH ON)
    if(TARGET torch_cuda AND TARGET c10_cuda AND NOT STAGECRAFT_CUDA_OF_WHEELS STREQUAL OFF)
      set(STAGECRAFT_HAS_CUDA ON)
    endif()
    # LibTorch is compiled with it, and some classes of its headers read members that only exist without it.
    string(TOUPPER "${CMAKE_BUILD_TYPE}" build_type)
    if(NOT "${CMAKE_CXX_FLAGS_${build_type}}" MATCHES NDEBUG)
      add_compile_definitions(NDEBUG)
    endif()
    message(STATUS "LibTorch: ${TORCH_INSTALL_PREFIX}, CUDA ${STAGECRAFT_HAS_CUDA}")
    if(STAGECRAFT_CUDA_OF_WHEELS STREQUAL OFF)
      message(STATUS "This LibTorch has CUDA, but there is no whole CUDA toolkit (nvcc, cublas_v2.h), and the wheels of CUDA beside it lack "
                     "something (crt/host_config.h is in nvidia-cuda-crt, or nvidia-cuda-nvcc-cu12): what is built computes on the CPU")
    endif()
  else()
    message(STATUS "LibTorch not found: building the torch-free half alone. 'make setup' installs it, or give "
                   "-DCMAKE_PREFIX_PATH=<where it is>")
  endif()
endif()
